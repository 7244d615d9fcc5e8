# SPDX-License-Identifier: Apache-2.0
"""Where zeros pay and where not, on this machine: one layer with more and more zeros.

Its weights and zeros are random; all contenders take turns in one race.
"""

import functools
from dataclasses import dataclass

import torch
from torch import nn

from gossamer.cli.quickstart.output import compile_afresh, compile_int8, forward
from gossamer.ops.timing import fair_clock, race, stopwatch
from gossamer.report.page import TextTable
from gossamer.runs import sparsify

_SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95)
_RACE_SECONDS = 1.0


@dataclass(frozen=True)
class ZerosPay:
    """Microseconds of one layer: dense, dense in int8, and by part of zeros.

    Attributes:
        shape: of the weight.
        rows: of the input.
        dense_us: of the dense product in fp32.
        int8_us: of the dense product in int8.
        sparse_us: sparsity -> of the layer compiled with that many zeros, in fp32.
    """

    shape: tuple[int, int]
    rows: int
    dense_us: float
    int8_us: float
    sparse_us: dict[float, float]

    def table(self) -> TextTable:
        """For the page."""
        told = [("dense fp32", self.dense_us), ("dense int8", self.int8_us)]
        told += [(f"{sparsity:.0%} zeros", us) for sparsity, us in self.sparse_us.items()]
        return TextTable(
            f"Where zeros pay: one layer of {self._size}, {self.rows} rows",
            ("", "us", "over dense fp32", "over dense int8"),
            tuple(
                (name, f"{us:.0f}", f"{self.dense_us / us:.2f}x", f"{self.int8_us / us:.2f}x")
                for name, us in told
            ),
            f"{self.sentence()} Weights and zeros of this layer are random; all took turns.",
        )

    def sentence(self) -> str:
        """From how many zeros on they pay."""
        return (
            f"Where zeros pay: a layer of {self._size} with {self.rows} rows is faster than dense"
            f" fp32 {self._from(self.dense_us)}, than dense int8 {self._from(self.int8_us)}."
        )

    @property
    def _size(self) -> str:
        return "x".join(map(str, self.shape))

    def _from(self, rival_us: float) -> str:
        """The least zeros from which on it is always faster than a rival."""
        winning: list[float] = []
        for sparsity, us in sorted(self.sparse_us.items(), reverse=True):
            if us >= rival_us:
                break
            winning.append(sparsity)
        if not winning:
            return f"with none of {', '.join(f'{s:.0%}' for s in sorted(self.sparse_us))} zeros"
        return f"from {winning[-1]:.0%} zeros on"


def try_zeros(shape: tuple[int, int], rows: int) -> ZerosPay:
    """Time a layer [out, in] on `rows` rows: dense, in int8, and with more and more zeros."""
    generator = torch.Generator().manual_seed(0)
    out, width = shape
    weight = torch.randn(out, width, generator=generator) / width**0.5
    x = torch.randn(rows, width, generator=generator)

    def layer() -> nn.Sequential:
        linear = nn.Linear(width, out)
        with torch.no_grad():
            linear.weight.copy_(weight)
        return nn.Sequential(linear).eval()

    def sparse(sparsity: float) -> nn.Module:
        made = layer()
        sparsify(made, sparsity=sparsity)
        return compile_afresh(made, (rows,))

    models = [layer(), compile_int8(layer(), (rows,))]
    models += map(sparse, _SPARSITIES)
    clock = fair_clock()
    watches = [stopwatch(functools.partial(forward, model, x), clock) for model in models]
    dense, int8, *others = race(watches, budget_seconds=_RACE_SECONDS)
    return ZerosPay(shape, rows, dense, int8, dict(zip(_SPARSITIES, others, strict=True)))
