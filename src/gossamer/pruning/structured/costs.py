# SPDX-License-Identifier: Apache-2.0
"""What keeping n units of a group costs: multiplications, parameters or measured time.

Embeddings, norms, poolers and heads of tasks are the same for every choice and are not counted.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from gossamer.errors import InputError
from gossamer.nn.surgery.slimming import UnitGroup, matrix_of
from gossamer.ops.timing import race, stopwatch

Cost = Literal["macs", "parameters", "latency"]
# cost of keeping 0, 1, ..., count units
CostTable = torch.Tensor
GRID_POINTS = 9


def cost_tables(groups: Sequence[UnitGroup], cost: Cost, tokens: float) -> list[CostTable]:
    """A table [count + 1] of float64 per group; table[n] is what n units cost.

    Args:
        groups: from `find_units`.
        cost: "macs" and "parameters" are counted, "latency" (seconds of one sequence) is measured
            on this machine with as many threads as torch uses now.
        tokens: average length of a sequence.
    """
    if not math.isfinite(tokens) or tokens <= 0:
        raise InputError(f"tokens: expected the average sequence length, above 0, got {tokens}.")
    if cost == "latency":
        measured: dict[tuple[object, ...], CostTable] = {}
        tables = []
        for group in groups:
            shapes = tuple(tuple(matrix_of(p).shape) for p in (*group.producers, group.consumer))
            key = (group.kind, group.count, group.width, shapes)
            if key not in measured:
                measured[key] = _measure(group, max(1, round(tokens)))
            tables.append(measured[key])
        return tables
    if cost not in ("macs", "parameters"):
        raise InputError(f"cost: expected 'macs', 'parameters' or 'latency', got {cost!r}.")
    return [
        unit_cost(group, cost, tokens) * torch.arange(group.count + 1, dtype=torch.float64)
        for group in groups
    ]


def unit_cost(group: UnitGroup, cost: Cost, tokens: float) -> float:
    """Multiplications for one sequence, or parameters, of one unit."""
    if not group.count:
        return 0.0
    out = matrix_of(group.consumer).shape[0]
    weights, biases = out * group.width, 0
    for producer in group.producers:
        rows, columns = matrix_of(producer).shape
        weights += rows * columns // group.count
        biases += rows // group.count if producer.bias is not None else 0
    if cost == "parameters":
        return float(weights + biases)
    # Scores and their weighted sum are two products of tokens x tokens x width.
    attention = 2 * tokens**2 * group.width if group.kind == "heads" else 0.0
    return tokens * weights + attention


def _measure(group: UnitGroup, tokens: int) -> CostTable:
    """Times on a grid of widths, made monotone and interpolated; no unit costs nothing."""
    if not group.count:
        return torch.zeros(1, dtype=torch.float64)
    grid = sorted({max(1, round(group.count * i / GRID_POINTS)) for i in range(1, GRID_POINTS + 1)})
    with torch.inference_mode():
        micros = race([stopwatch(_work(group, units, tokens)) for units in grid], min_rounds=9)
    times = np.interp(range(1, group.count + 1), grid, micros)
    return torch.tensor([0.0, *times], dtype=torch.float64).cummax(0).values * 1e-6


def _work(group: UnitGroup, units: int, tokens: int) -> Callable[[], object]:
    """The group's products for one sequence with this many units, on weights of zeros."""
    shares = [matrix_of(producer).shape for producer in group.producers]
    dtype = matrix_of(group.consumer).dtype
    before = [torch.zeros(rows * units // group.count, cols, dtype=dtype) for rows, cols in shares]
    after = torch.zeros(matrix_of(group.consumer).shape[0], units * group.width, dtype=dtype)
    x_TD = torch.zeros(tokens, shares[0][1], dtype=dtype)
    mixed = torch.zeros(1, units, tokens, group.width, dtype=dtype)

    def work() -> object:
        made = [linear(x_TD, weight) for weight in before]
        if group.kind == "heads":
            heads = scaled_dot_product_attention(mixed, mixed, mixed)
            return linear(heads.transpose(1, 2).reshape(tokens, -1), after)
        return linear(gelu(made[-1]), after)

    return work
