# SPDX-License-Identifier: Apache-2.0
"""Structured post-training pruning: whole heads and filters go, the model gets smaller for good."""

from gossamer.nn.slimming import UnitGroup
from gossamer.pruning.structured.costs import cost_tables
from gossamer.pruning.structured.gradients import fisher_scores, mask_gradients
from gossamer.pruning.structured.masks import mask_factors, scaled_units
from gossamer.pruning.structured.pipeline import prune_structured
from gossamer.pruning.structured.rearrange import pruned_objective, rearrange_units
from gossamer.pruning.structured.result import BlockUnits, StageLog, StructuredResult
from gossamer.pruning.structured.search import best_units, search_units, two_lists
from gossamer.pruning.structured.slim import slim
from gossamer.pruning.structured.tune import SubLayerFit, reconstruct
from gossamer.pruning.structured.units import find_units

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
