# SPDX-License-Identifier: Apache-2.0
"""Step 1: which weights go. Scorers rank them, budgets share a target, patterns make it legal.

Start with `plan_oneshot` and `apply_plan`, which prune by a `Scorer` and give a `LayerResult` per
layer; `register_scorer` adds one. A `Method` takes data as well and finds new weights with the
mask; `make_method` finds it by its name.

Behind this door: `targets` (which layers), `budgets` (how much of each), `oneshot` (plans),
`calibration` and `solvers` (a layer's outputs decide), `gradients` (a loss decides), `structured`
(whole heads and filters go) and `schedules` (masks move while a model trains). README.md tells how
a layer is pruned with data.
"""

from gossamer.pruning.methods import Method, Scorer, make_method, register_scorer
from gossamer.pruning.oneshot import LayerResult, apply_plan, plan_oneshot

__all__ = [
    "LayerResult",
    "Method",
    "Scorer",
    "apply_plan",
    "make_method",
    "plan_oneshot",
    "register_scorer",
]
