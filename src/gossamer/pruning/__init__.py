# SPDX-License-Identifier: Apache-2.0
"""Step 1: which weights go. Scorers rank them, budgets share a target, patterns make it legal."""

from gossamer.pruning.budgets.from_data import by_sensitivity, outlier_weighted
from gossamer.pruning.budgets.table import BUDGETS, Budget, BudgetLayer
from gossamer.pruning.oneshot import LayerResult, apply_plan, prune_oneshot
from gossamer.pruning.plan import Plan, check_sparsity, plan_oneshot
from gossamer.pruning.scorers import SCORERS, LayerContext, Scorer, random_scorer, register_scorer
from gossamer.pruning.targets import Target, find_targets

__all__ = [
    "BUDGETS",
    "SCORERS",
    "Budget",
    "BudgetLayer",
    "LayerContext",
    "LayerResult",
    "Plan",
    "Scorer",
    "Target",
    "apply_plan",
    "by_sensitivity",
    "check_sparsity",
    "find_targets",
    "outlier_weighted",
    "plan_oneshot",
    "prune_oneshot",
    "random_scorer",
    "register_scorer",
]
