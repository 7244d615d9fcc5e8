# SPDX-License-Identifier: Apache-2.0
"""Layer-wise methods: a mask and new kept weights from the Gram matrix of a layer's inputs.

Start with `LayerProblem`, which every solver turns into a `LayerSolution`. `refit` is the least
squares solution for a given mask.
"""

from gossamer.pruning.solvers.problem import (
    LayerProblem,
    LayerSolution,
    Needed,
    NotPositiveDefinite,
    Solve,
    damped,
    keep_highest,
    nearest_density,
    refit,
)
from gossamer.pruning.solvers.reconstruction import ADMM, ExactOBS
from gossamer.pruning.solvers.sparsegpt import SparseGPT

__all__ = [
    "ADMM",
    "ExactOBS",
    "LayerProblem",
    "LayerSolution",
    "Needed",
    "NotPositiveDefinite",
    "Solve",
    "SparseGPT",
    "damped",
    "keep_highest",
    "nearest_density",
    "refit",
]
