# SPDX-License-Identifier: Apache-2.0
"""Pruning by gradients of a loss: scores, Fisher blocks, second-order costs.

Start with `prune_by_gradients`, which takes all gradients at the given weights before it changes
one. `default_loss` finds a loss where the user gives none.
"""

from gossamer.pruning.gradients.losses import default_loss, next_token_loss, output_of
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
    "default_loss",
    "make_gradient_method",
    "next_token_loss",
    "output_of",
    "prune_by_gradients",
    "score_by_gradients",
]
