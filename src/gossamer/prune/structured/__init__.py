# SPDX-License-Identifier: Apache-2.0
"""Structured post-training pruning: whole heads and filters go, the model gets smaller for good."""

from gossamer.nn.slimming import UnitGroup
from gossamer.prune.structured.costs import cost_tables
from gossamer.prune.structured.gradients import fisher_scores, mask_gradients
from gossamer.prune.structured.masks import mask_factors, scaled_units
from gossamer.prune.structured.pipeline import prune_structured
from gossamer.prune.structured.rearrange import pruned_objective, rearrange_units
from gossamer.prune.structured.result import BlockUnits, StageLog, StructuredResult
from gossamer.prune.structured.search import best_units, search_units, two_lists
from gossamer.prune.structured.slim import slim
from gossamer.prune.structured.tune import SubLayerFit, reconstruct
from gossamer.prune.structured.units import find_units

__all__ = [
    "BlockUnits",
    "StageLog",
    "StructuredResult",
    "SubLayerFit",
    "UnitGroup",
    "best_units",
    "cost_tables",
    "find_units",
    "fisher_scores",
    "mask_factors",
    "mask_gradients",
    "prune_structured",
    "pruned_objective",
    "rearrange_units",
    "reconstruct",
    "scaled_units",
    "search_units",
    "slim",
    "two_lists",
]
