# SPDX-License-Identifier: Apache-2.0
"""A model over several ranks, layer after layer: cutting, orders of work, messages.

Start with `LayerPipeline` and `PipelineSettings`. `cut` divides a chain of layers into stages of
about equal cost, `MessageDriven` decides what a stage runs next, `WorkSpan` says what it did when.
"""

from gossamer.training.distributed.pipeline.cutting import cut
from gossamer.training.distributed.pipeline.message_driven import Direction, MessageDriven, Work
from gossamer.training.distributed.pipeline.pipeline import LayerPipeline
from gossamer.training.distributed.pipeline.schedules import PipelineSettings
from gossamer.training.distributed.pipeline.stage import WorkSpan, most_held

__all__ = [
    "Direction",
    "LayerPipeline",
    "MessageDriven",
    "PipelineSettings",
    "Work",
    "WorkSpan",
    "cut",
    "most_held",
]
