# SPDX-License-Identifier: Apache-2.0
"""Who carries out the steps of a loop: `Processes`, here one, elsewhere a mesh of them.

`loss_of` is the loss of a batch, with gradients recomputed if asked (`recomputing`);
`not_finite_gradients` names bad ones. `Agreement`, `Evaluate`, `LossAndNumbers` and `States` are
what a mesh must take and give as well.
"""

from gossamer.training.loop.processes.recompute import recomputing
from gossamer.training.loop.processes.single import (
    Agreement,
    LossAndNumbers,
    Processes,
    States,
    loss_of,
    not_finite_gradients,
)
from gossamer.training.loop.run import Evaluate

__all__ = [
    "Agreement",
    "Evaluate",
    "LossAndNumbers",
    "Processes",
    "States",
    "loss_of",
    "not_finite_gradients",
    "recomputing",
]
