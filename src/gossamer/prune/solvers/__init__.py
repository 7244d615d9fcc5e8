# SPDX-License-Identifier: Apache-2.0
"""Layer-wise methods: a mask and new kept weights from the Gram matrix of a layer's inputs."""

from gossamer.prune.solvers.admm import ADMM
from gossamer.prune.solvers.exact_obs import ExactOBS
from gossamer.prune.solvers.gram import NotPositiveDefinite
from gossamer.prune.solvers.least_squares import refit
from gossamer.prune.solvers.problem import LayerProblem, LayerSolution
from gossamer.prune.solvers.sparsegpt import SparseGPT

__all__ = [
    "ADMM",
    "ExactOBS",
    "LayerProblem",
    "LayerSolution",
    "NotPositiveDefinite",
    "SparseGPT",
    "refit",
]
