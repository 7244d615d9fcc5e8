# SPDX-License-Identifier: Apache-2.0
"""How optimizers move rows: one native pass over the rows that were looked up.

Legend: V rows, D columns (width), U rows that were looked up.
"""

from dataclasses import dataclass

import torch
from torch.autograd.graph import increment_version

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.kernels import active_kernels
from gossamer.ops.table.rows import Rows
from gossamer.ops.table.training.gradient import RowGradient
from gossamer.ops.without_native import why_missing

_WHERE = "table optimizer"
_RULES = {"sgd": 1, "adagrad": 2, "adam": 3}


@dataclass(frozen=True, eq=False)
class RowRule:
    """What is done with the gradient g of a row w.

    sgd: w -= lr g.  adagrad: h += mean(g^2), w -= lr / (sqrt(h) + eps) g, with one h for a row.
    adam: m += mean_rate (g - m), v += square_rate (g^2 - v), w -= lr m / (sqrt(v) + eps).

    Attributes:
        name: "sgd", "adagrad" or "adam".
        lr: of adam, with its corrections of the first steps.
        eps, mean_rate, square_rate: as above.
        sums: h, float32 [V].
        means, squares: m and v, float32 [V, D].
        noise: of stochastic rounding, a function of seed and step; for codes.
    """

    name: str
    lr: float
    eps: float = 0.0
    mean_rate: float = 0.0
    square_rate: float = 0.0
    sums: torch.Tensor | None = None
    means: torch.Tensor | None = None
    squares: torch.Tensor | None = None
    noise: int = 0

    def native(self) -> _native.RowStep:
        """As native code takes it; this object must outlive the call."""
        return _native.row_step(
            _RULES[self.name],
            self.lr,
            self.eps,
            self.mean_rate,
            self.square_rate,
            address(self.sums, _WHERE),
            address(self.means, _WHERE),
            address(self.squares, _WHERE),
            self.noise,
        )


def move_rows(rows: Rows, gradient: RowGradient, rule: RowRule) -> None:
    """One step of a table, in place: float32 or codes, on the CPU."""
    is_known = rows.is_native() and gradient.values.dtype is torch.float32
    if not is_known and why_missing() is None:
        raise InputError(
            f"{_WHERE}: rows must be float32 or codes on the CPU, got {rows.data.dtype} on"
            f" {rows.data.device}."
        )
    _native.table_step(
        rows.native(rounds=False),
        address(gradient.rows, _WHERE),
        len(gradient.rows),
        address(gradient.values, _WHERE),
        rule.native(),
        active_kernels(),
    )
    increment_version(rows.data)
