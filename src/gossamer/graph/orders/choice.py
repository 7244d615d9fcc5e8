# SPDX-License-Identifier: Apache-2.0
"""Transform first or propagate first.

`A (X W)` and `(A X) W` are the same, with the same dense work; what differs is how wide the
products with the graph are. With a inputs and b outputs, and c(w) the time of a product of width w:

    transform first   forward c(b)   backward c(b)
    propagate first   forward c(a)   backward c(a) if X needs a gradient, else nothing

The second needs no product for the gradient of W, as the forward's A X is what it is multiplied
with. If c grows like the width, the first layer propagates first where a <= 2 b, others where
a <= b ("Cached operator reordering", arXiv 2308.12093).

If X is mostly zeros, the dense work is not the same: X W can be a sparse product, (A X) W cannot.
`Detour` says what the first order has more in the graph where the second one has less.
"""

import weakref
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gossamer.graph.structure import Propagation
from gossamer.ops.spmm import EdgeMatrix
from gossamer.ops.timing import contest
from gossamer.settings import tuning_enabled

# Products with fewer numbers than this take microseconds: the rule decides.
_WORTH_MEASURING = 1 << 20
# Widths whose ratio is beyond this are not measured: no graph turns them round.
_CLEAR = 3.0


@dataclass(frozen=True)
class OrderChoice:
    """What a layer does and why.

    Attributes:
        order: "transform first", "propagate first", "A x kept" or "sparse x".
        why: one sentence.
        microseconds: what products with the graph take per step: transform first, propagate first;
            None where the rule decided.
    """

    order: str
    why: str
    microseconds: tuple[float, float] | None = None

    @property
    def propagates_first(self) -> bool:
        """Whether the graph comes before the weight."""
        return self.order in ("propagate first", "A x kept")


class ProductCosts:
    """Measured times of products with one matrix, by width."""

    def __init__(self) -> None:
        self._us: dict[int, float] = {}

    def of(self, propagation: Propagation, width: int) -> float:
        """Microseconds of a product with features of this width."""
        if width not in self._us:
            x = torch.ones(propagation.matrix.edges.num_sources, width)
            with torch.no_grad():
                self._us[width] = contest(lambda: propagation(x), budget_seconds=0.01).us[0]
        return self._us[width]


_costs: weakref.WeakKeyDictionary[EdgeMatrix, ProductCosts] = weakref.WeakKeyDictionary()


def costs_of(propagation: Propagation) -> ProductCosts:
    """Times of products with a matrix; they live as long as it does."""
    return _costs.setdefault(propagation.matrix, ProductCosts())


class Detour(NamedTuple):
    """What a step has more in products with the graph if it transforms first, not propagates first.

    The features get no gradient.

    Attributes:
        propagation: the matrix.
        hops: how many products with it follow each other.
        is_kept: A x is there already, and propagating first needs no product at all.
    """

    propagation: Propagation
    hops: int = 1
    is_kept: bool = False

    def microseconds(self, inputs: int, outputs: int, passes: int) -> float:
        """Time of what it has more, measured; passes are 2 with a backward pass, else 1."""
        costs = costs_of(self.propagation)
        own = 0.0 if self.is_kept else costs.of(self.propagation, inputs)
        return self.hops * (passes * costs.of(self.propagation, outputs) - own)

    def multiplications(self, inputs: int, outputs: int, passes: int) -> int:
        """The same as a number of multiplications."""
        width = passes * outputs - (0 if self.is_kept else inputs)
        return self.hops * self.propagation.matrix.edges.num_edges * width


def choose(
    propagation: Propagation,
    inputs: int,
    outputs: int,
    *,
    trains: bool,
    needs_dx: bool,
    hops: int = 1,
    measures: bool = True,
) -> OrderChoice:
    """Which order takes less time.

    Args:
        propagation: the matrix.
        inputs: a.
        outputs: b.
        trains: a backward pass follows.
        needs_dx: it goes on to the features.
        hops: how many products with the graph follow each other.
        measures: time them where the rule may be wrong.
    """
    transform = outputs * (2 if trains else 1)
    propagate = inputs * (2 if trains and needs_dx else 1)
    size = propagation.matrix.edges.num_edges * min(inputs, outputs)
    is_clear = max(transform, propagate) > _CLEAR * min(transform, propagate)
    if is_clear or size < _WORTH_MEASURING or not (measures and tuning_enabled()):
        first = "propagate first" if propagate <= transform else "transform first"
        sign = "<=" if propagate <= transform else ">"
        why = f"{propagate} {sign} {transform} features through the graph per step, by rule"
        return OrderChoice(first, why)
    costs = costs_of(propagation)
    times = (
        costs.of(propagation, outputs) * transform / outputs * hops,
        costs.of(propagation, inputs) * propagate / inputs * hops,
    )
    first = "propagate first" if times[1] <= times[0] else "transform first"
    return OrderChoice(first, "the faster one of both, measured", times)
