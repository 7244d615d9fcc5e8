# SPDX-License-Identifier: Apache-2.0
"""How a target density is shared among layers: each budget gives whole numbers of kept weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch

from gossamer.errors import InputError
from gossamer.patterns import keep_largest, kept_count
from gossamer.registry import Registry

# What a budget must know of the layers besides their shapes. Outliers and errors are measured on
# calibration data, see `measures`.
BudgetNeeds = Literal["nothing", "scores", "outliers", "errors"]


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
    errors: tuple[tuple[int, float], ...] | None = None

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
    wide = max((s.dtype for s in scores), key=lambda d: torch.finfo(d).bits, default=torch.float32)
    device = scores[0].device if scores else None
    flat = torch.cat([s.reshape(-1).to(device, wide) for s in scores]) if scores else torch.empty(0)
    kept = keep_largest(flat, kept_count(density, flat.numel()))
    parts = torch.tensor_split(kept, list(accumulate(layer.numel for layer in layers))[:-1])
    return [int(part.sum()) for part in parts[: len(layers)]]


def erdos_renyi_kernel(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """ERK (arXiv 1911.11134): density of a layer proportional to sum(shape) / prod(shape).

    At equal size ERK costs about twice the arithmetic of uniform on convolutional networks.
    """
    return _in_proportion(layers, density, [_erk_ratio(layer) for layer in layers])


def half_erk(layers: Sequence[BudgetLayer], density: float) -> list[int]:
    """Halfway between uniform and ERK: densities proportional to the root of ERK's.

    Small layers keep more, as they need, at less than half of what ERK adds to the arithmetic of
    uniform (ResNet-20 at 85 %: 0.20 of the products; ERK has 0.28, uniform 0.15).
    """
    return _in_proportion(layers, density, [math.sqrt(_erk_ratio(layer)) for layer in layers])


def _erk_ratio(layer: BudgetLayer) -> float:
    return sum(layer.shape) / layer.numel if layer.numel else 0.0


def _in_proportion(layers: Sequence[BudgetLayer], density: float, raw: list[float]) -> list[int]:
    """Densities proportional to `raw`; the total is exactly round(density * total).

    Layers that would exceed 1 become dense and leave the budget, all with the highest raw density
    at once, until none is left.
    """
    sizes = [layer.numel for layer in layers]
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
    by_remainder = sorted(
        range(len(wanted)), key=lambda i: (wanted[i] - counts[i], -i), reverse=True
    )
    missing = total - sum(counts)
    for i in by_remainder:
        step = min(1, sizes[i] - counts[i], missing)
        counts[i] += step
        missing -= step
    return counts


BUDGETS.add("uniform", Budget("uniform", uniform))
BUDGETS.add("global", Budget("global", global_ranking, needs="scores"))
BUDGETS.add("erk", Budget("erk", erdos_renyi_kernel))
BUDGETS.add("half-erk", Budget("half-erk", half_erk))
