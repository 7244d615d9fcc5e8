# SPDX-License-Identifier: Apache-2.0
"""Tables that are trained: lookups with sparse gradients, and what optimizers do with rows.

`trained_pool` is differentiable. `move_rows` takes a `RowGradient` and a `RowRule`; an optimizer
that leaves a `RowSink` on the Parameter moves rows inside the backward instead.
"""

from gossamer.ops.table.lookup import Seen
from gossamer.ops.table.training.gradient import (
    Backward,
    RowGradient,
    RowSink,
    row_gradient,
    trained_pool,
)
from gossamer.ops.table.training.steps import RowRule, move_rows

__all__ = [
    "Backward",
    "RowGradient",
    "RowRule",
    "RowSink",
    "Seen",
    "move_rows",
    "row_gradient",
    "trained_pool",
]
