# SPDX-License-Identifier: Apache-2.0
"""A model over several ranks, layer after layer: cutting, orders of work, messages.

Start with `LayerPipeline` and `PipelineSettings`. `cut` divides a chain of layers into stages of
about equal cost, `Work` is what a stage runs next, `WorkSpan` says what it did when.
"""

from gossamer.training.distributed.pipeline.cutting import cut
from gossamer.training.distributed.pipeline.message_driven import Direction, Work
from gossamer.training.distributed.pipeline.pipeline import LayerPipeline
from gossamer.training.distributed.pipeline.schedules import PipelineSettings
from gossamer.training.distributed.pipeline.stage import WorkSpan

__all__ = [
    "Direction",
    "LayerPipeline",
    "PipelineSettings",
    "Work",
    "WorkSpan",
    "cut",
]
