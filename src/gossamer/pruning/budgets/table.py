# SPDX-License-Identifier: Apache-2.0
"""How a target density is shared among layers: each budget gives whole numbers of kept weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from gossamer.errors import InputError
from gossamer.patterns.selection import keep_largest, kept_count
from gossamer.registry import Registry

# What a budget must know of the layers besides their shapes. Outliers and errors are measured on
# calibration data, see `measures`.
BudgetNeeds = Literal["nothing", "scores", "outliers", "errors"]
# How far the density of a layer may be from the mean under OWL.
OWL_SPREAD = 0.08

Point = tuple[int, float]


@dataclass(frozen=True)
class BudgetLayer:
    """What a budget sees of one layer.

    Attributes:
        name: dotted name.
        shape: shape of the weight, kernel dimensions included.
        scores: of the weights; None unless the budget needs them.
        outliers: part of the weights of the layer's block that are outliers; likewise.
        errors: (kept weights, relative change of the outputs) from few to all weights; likewise.
    """

    name: str
    shape: tuple[int, ...]
    scores: torch.Tensor | None = None
    outliers: float | None = None
    errors: tuple[Point, ...] | None = None

    @property
    def numel(self) -> int:
        """Weights of the layer."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Budget:
    """A named allocation: (layers, density) -> kept weights per layer."""

    name: str
    allocate: Callable[[Sequence[BudgetLayer], float], list[int]]
    needs: BudgetNeeds = "nothing"

    @property
    def needs_data(self) -> bool:
        """Whether calibration data must be given."""
        return self.needs in ("outliers", "errors")

    def __call__(self, layers: Sequence[BudgetLayer], density: float) -> list[int]:
        """The counts, checked against the layers' sizes."""
        counts = self.allocate(layers, density)
        if len(counts) != len(layers):
            raise InputError(
                f"budget {self.name!r}: gave {len(counts)} counts for {len(layers)} layers."
            )
        for layer, count in zip(layers, counts, strict=True):
            if not 0 <= count <= layer.numel:
                raise InputError(
                    f"budget {self.name!r}: {layer.name} has {layer.numel} weights and cannot keep"
                    f" {count}."
                )
        return counts


_STUB = """\
from gossamer.pruning.budgets import BUDGETS, Budget

def allocate(layers, density):    # layer.name, layer.shape, layer.numel, layer.scores
    return [round(density * layer.numel) for layer in layers]

BUDGETS.add("{name}", Budget("{name}", allocate))
"""

BUDGETS: Registry[Budget] = Registry("budget", _STUB)


def uniform(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """The same density everywhere."""
    return [kept_count(density, layer.numel) for layer in layers]


def global_ranking(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """Keep the highest scores of all layers together, exactly round(density * total) of them.

    Ties are cut in the order (layer, position). Holds all scores at once.
    """
    scores = [layer.scores for layer in layers if layer.scores is not None]
    if len(scores) != len(layers):
        raise InputError("budget 'global': needs the scores of every layer.")
    if not scores:
        return []
    flat = torch.cat([score.reshape(-1).to(scores[0].device) for score in scores])
    kept = keep_largest(flat, kept_count(density, flat.numel()))
    return [int(part.sum()) for part in torch.split(kept, [layer.numel for layer in layers])]


def erdos_renyi_kernel(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """ERK (arXiv 1911.11134): density of a layer proportional to sum(shape) / prod(shape).

    At equal size ERK costs about twice the arithmetic of uniform on convolutional networks.
    """
    return _in_proportion(layers, density, float)


def half_erk(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """Halfway between uniform and ERK: densities proportional to the root of ERK's.

    Small layers keep more, as they need, at less than half of what ERK adds to the arithmetic of
    uniform (ResNet-20 at 85 %: 0.20 of the products; ERK has 0.28, uniform 0.15).
    """
    return _in_proportion(layers, density, math.sqrt)


def _in_proportion(
    layers: Sequence[BudgetLayer], density: float, scale: Callable[[float], float]
) -> list[int]:
    """Densities proportional to scaled ones of ERK; the total is exactly round(density * total).

    Layers that would exceed 1 become dense and leave the budget, all with the highest raw density
    at once, until none is left.
    """
    sizes = [layer.numel for layer in layers]
    raw = [scale(sum(layer.shape) / layer.numel) if layer.numel else 0.0 for layer in layers]
    total = kept_count(density, sum(sizes))
    dense: set[int] = set()
    while True:
        open_layers = [i for i in range(len(layers)) if i not in dense and sizes[i]]
        if not open_layers:
            return sizes
        left = total - sum(sizes[i] for i in dense)
        factor = left / sum(raw[i] * sizes[i] for i in open_layers)
        highest = max(raw[i] for i in open_layers)
        if highest * factor <= 1:
            break
        dense.update(i for i in open_layers if raw[i] == highest)
    wanted = [float(size) if i in dense else factor * raw[i] * size for i, size in enumerate(sizes)]
    return round_to_total(wanted, sizes, total)


def round_to_total(wanted: list[float], sizes: list[int], total: int) -> list[int]:
    """Whole numbers near `wanted` that add up to `total`: the largest remainders are rounded up."""
    counts = [min(math.floor(w), size) for w, size in zip(wanted, sizes, strict=True)]
    missing = total - sum(counts)
    for i in sorted(range(len(wanted)), key=lambda i: counts[i] - wanted[i]):
        step = min(1, sizes[i] - counts[i], missing)
        counts[i] += step
        missing -= step
    return counts


def outlier_weighted(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """OWL (after arXiv 2310.05175): layers with more outliers keep more.

    The density of a layer is the mean plus OWL_SPREAD times the deviation of its outliers from
    their mean, over the largest such deviation: nobody is further than OWL_SPREAD from the mean,
    and the total is exact, also for layers of different sizes. No layer falls below half of the
    mean density; where it is near 0 or 1, the spread is smaller.
    """
    found = [layer.outliers for layer in layers if layer.outliers is not None]
    if len(found) != len(layers):
        raise InputError("budget 'owl': needs the outliers of every layer, measured on data.")
    sizes = [layer.numel for layer in layers]
    if not sum(sizes):
        return [0] * len(layers)
    mean = sum(o * size for o, size in zip(found, sizes, strict=True)) / sum(sizes)
    # An empty layer has no density.
    far = [o - mean if size else 0.0 for o, size in zip(found, sizes, strict=True)]
    largest = max(map(abs, far))
    factor = min(OWL_SPREAD, density / 2, 1 - density) / largest if largest else 0.0
    wanted = [(density + factor * d) * size for d, size in zip(far, sizes, strict=True)]
    return round_to_total(wanted, sizes, kept_count(density, sum(sizes)))


def by_sensitivity(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """The counts with the least sum of relative output errors, on the measured curves.

    Between measured points a curve is its lower convex hull. Every layer starts at its first
    point, and the steepest piece of all hulls is bought next until the total is spent; with
    convex curves nothing is better. A hull promises nothing that was not measured: its corners
    are measured points, and only the last piece is bought in part.
    """
    curves = [layer.errors for layer in layers if layer.errors]
    if len(curves) != len(layers):
        raise InputError("budget 'sensitivity': needs the error curve of every layer.")
    total = kept_count(density, sum(layer.numel for layer in layers))
    counts = [curve[0][0] for curve in curves]
    most = sum(curve[-1][0] for curve in curves)
    if not sum(counts) <= total <= most:
        raise InputError(
            f"budget 'sensitivity': the layers were measured from {sum(counts)} to {most} kept"
            f" weights, but {total} are asked for. A layer that is masked already cannot keep more"
            " than it has; ask for a higher sparsity."
        )
    pieces = [
        ((after[1] - before[1]) / (after[0] - before[0]), index, after[0] - before[0])
        for index, curve in enumerate(curves)
        for before, after in pairwise(lower_hull(curve))
    ]
    left = total - sum(counts)
    # Slopes of one hull ascend, so a stable sort keeps its pieces in order.
    for _, index, width in sorted(pieces, key=lambda piece: piece[0]):
        bought = min(width, left)
        counts[index] += bought
        left -= bought
    return counts


def lower_hull(points: Sequence[Point]) -> list[Point]:
    """Corners of the largest convex curve below `points`, which ascend in their counts."""
    hull: list[Point] = []
    for point in points:
        if not math.isfinite(point[1]) or (hull and point[0] < hull[-1][0]):
            raise InputError(f"error curve: expected finite errors at ascending counts: {points}.")
        if hull and point[0] == hull[-1][0]:
            continue
        while len(hull) > 1 and _is_above(hull[-1], hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def _is_above(middle: Point, left: Point, right: Point) -> bool:
    """Whether `middle` lies on or above the line between its neighbours."""
    rise = (right[1] - left[1]) * (middle[0] - left[0])
    return (middle[1] - left[1]) * (right[0] - left[0]) >= rise


for _budget in (
    Budget("uniform", uniform),
    Budget("global", global_ranking, needs="scores"),
    Budget("erk", erdos_renyi_kernel),
    Budget("half-erk", half_erk),
    Budget("owl", outlier_weighted, needs="outliers"),
    Budget("sensitivity", by_sensitivity, needs="errors"),
):
    BUDGETS.add(_budget.name, _budget)
