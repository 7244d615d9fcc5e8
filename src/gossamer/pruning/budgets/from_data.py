# SPDX-License-Identifier: Apache-2.0
"""Budgets that share a target by what was measured on calibration data."""

import math
from collections.abc import Sequence
from itertools import pairwise

from gossamer.errors import InputError
from gossamer.patterns import kept_count
from gossamer.pruning.budgets.table import BUDGETS, Budget, BudgetLayer, round_to_total

# How far the density of a layer may be from the mean.
OWL_SPREAD = 0.08

Point = tuple[int, float]


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
    spread = min(OWL_SPREAD, density / 2, 1 - density)
    factor = spread / largest if largest else 0.0
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
        for hull in [lower_hull(curve)]
        for before, after in pairwise(hull)
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


BUDGETS.add("owl", Budget("owl", outlier_weighted, needs="outliers"))
BUDGETS.add("sensitivity", Budget("sensitivity", by_sensitivity, needs="errors"))
