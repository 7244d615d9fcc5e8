# SPDX-License-Identifier: Apache-2.0
"""Pruning by gradients of a `Loss`: scores, Fisher blocks, second-order costs.

Start with `prune_by_gradients`, which takes all gradients at the given weights before it changes
one; `score_by_gradients` only ranks the weights. `make_gradient_method` finds a `GradientMethod` by
its name, such as `OBERT`; `GradientPasses` run the batches for them. `losses` finds a loss where
the user gives none.
"""

from gossamer.pruning.gradients.obert import OBERT
from gossamer.pruning.gradients.passes import GradientMethod, GradientPasses, Loss
from gossamer.pruning.gradients.pruning import (
    make_gradient_method,
    prune_by_gradients,
    score_by_gradients,
)

__all__ = [
    "OBERT",
    "GradientMethod",
    "GradientPasses",
    "Loss",
    "make_gradient_method",
    "prune_by_gradients",
    "score_by_gradients",
]
