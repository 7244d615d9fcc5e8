# SPDX-License-Identifier: Apache-2.0
"""A model over several ranks, layer after layer: cutting, orders of work, messages.

Start with `LayerPipeline` and `PipelineSettings`. `find_links` sees a model as a chain of layers
and `cut` divides it into stages of about equal cost; `pieces` are a batch's microbatches. `Work` is
what a stage runs next in some `Direction`, `WorkSpan` says what it did when. The orders of work are
in `schedules`.
"""

from gossamer.training.distributed.pipeline.cutting import cut, find_links
from gossamer.training.distributed.pipeline.message_driven import Direction, Work
from gossamer.training.distributed.pipeline.pipeline import LayerPipeline, pieces
from gossamer.training.distributed.pipeline.schedules import PipelineSettings
from gossamer.training.distributed.pipeline.stage import WorkSpan

__all__ = [
    "Direction",
    "LayerPipeline",
    "PipelineSettings",
    "Work",
    "WorkSpan",
    "cut",
    "find_links",
    "pieces",
]
