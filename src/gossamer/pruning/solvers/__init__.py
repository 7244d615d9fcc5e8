# SPDX-License-Identifier: Apache-2.0
"""Layer-wise methods: a mask and new kept weights from the Gram matrix of a layer's inputs.

Start with `LayerProblem`, which every solver turns into a `LayerSolution`; `Solve` is such a
function, and `Needed` says which statistics it wants. `damped` makes a Gram matrix safe to factor
(`NotPositiveDefinite` if that fails), and `refit` is the least squares solution for a given mask.
The solvers are in `reconstruction.py` and `sparsegpt.py`; the table of methods names them.
"""

from gossamer.pruning.solvers.problem import (
    LayerProblem,
    LayerSolution,
    Needed,
    NotPositiveDefinite,
    Solve,
    damped,
    refit,
)

__all__ = [
    "LayerProblem",
    "LayerSolution",
    "Needed",
    "NotPositiveDefinite",
    "Solve",
    "damped",
    "refit",
]
