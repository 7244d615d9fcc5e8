# SPDX-License-Identifier: Apache-2.0
"""Step 1: which weights go. Scorers rank them, budgets share a target, patterns make it legal.

Start with `plan_oneshot` and `apply_plan`, which prune by a scorer. With data a layer's outputs
decide (`calibration`, `solvers`), or gradients of a loss (`gradients`); `structured` cuts whole
heads and filters, and `schedules` move masks while a model trains. README.md tells how a layer is
pruned with data.
"""

from gossamer.pruning.methods import Scorer, register_scorer
from gossamer.pruning.oneshot import (
    LayerResult,
    PruningPlan,
    apply_plan,
    check_layer,
    plan_oneshot,
    tensors_of,
)

__all__ = [
    "LayerResult",
    "PruningPlan",
    "Scorer",
    "apply_plan",
    "check_layer",
    "plan_oneshot",
    "register_scorer",
    "tensors_of",
]
