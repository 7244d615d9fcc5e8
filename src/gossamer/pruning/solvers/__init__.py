# SPDX-License-Identifier: Apache-2.0
"""Layer-wise methods: a mask and new kept weights from the Gram matrix of a layer's inputs."""

from gossamer.pruning.solvers.admm import ADMM
from gossamer.pruning.solvers.exact_obs import ExactOBS
from gossamer.pruning.solvers.gram import NotPositiveDefinite
from gossamer.pruning.solvers.least_squares import refit
from gossamer.pruning.solvers.problem import LayerProblem, LayerSolution
from gossamer.pruning.solvers.sparsegpt import SparseGPT

__all__ = [
    "ADMM",
    "ExactOBS",
    "LayerProblem",
    "LayerSolution",
    "NotPositiveDefinite",
    "SparseGPT",
    "refit",
]
