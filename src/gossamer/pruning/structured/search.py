# SPDX-License-Identifier: Apache-2.0
"""Which units to keep for the most score within a budget: an exact multiple-choice knapsack.

What keeping n units of a group costs is multiplications, parameters or measured time. Embeddings,
norms, poolers and heads of tasks are the same for every choice and are not counted.

Per group the option n is "keep the n units with the highest scores". Equal scores: the lower
index first, and of equal totals the one with fewer units in the later groups.

Then which units of a group go together: their number stays, and the summed gradient of the pruned
ones shrinks (`rearrange_units`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from gossamer.errors import InputError, ResourceError
from gossamer.nn.surgery.matrix_layers import matrix_of
from gossamer.nn.surgery.slimming import UnitGroup
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


# Costs that are no multiples of a common unit are rounded up to this part of the budget.
STEPS = 20_000
# Number of units -> their value, and their cost.
Choice = dict[int, tuple[float, float]]


def search_units(
    scores: Sequence[torch.Tensor],
    tables: Sequence[torch.Tensor],
    budget: float,
    *,
    multiple: int | Sequence[int] = 1,
    minimum: int | Sequence[int] = 0,
) -> list[list[int]]:
    """Kept units of every group, ascending; their cost never exceeds `budget`.

    Args:
        scores: per group [units], larger is more important, not negative.
        tables: per group [units + 1], cost of keeping n units.
        budget: in the unit of the tables.
        multiple: kept counts are multiples of it, or all units; one for all groups or one each.
        minimum: at least so many units, or all if there are fewer.

    Raises:
        ResourceError: no choice fits the budget.
    """
    multiples = _per_group("multiple", multiple, len(scores), low=1)
    minimums = _per_group("minimum", minimum, len(scores), low=0)
    orders, choices = [], []
    for score, table, step, least in zip(scores, tables, multiples, minimums, strict=True):
        count = len(score)
        if len(table) != count + 1:
            raise InputError(f"a table of {len(table)} costs for {count} units; one more is due.")
        if not torch.isfinite(score).all() or (count and score.min() < 0):
            raise InputError("scores: must be finite and not negative; check data and weights.")
        if not torch.isfinite(table).all() or table.min() < 0:
            raise InputError("costs: must be finite and not negative.")
        ranked, order = torch.sort(score.double(), descending=True, stable=True)
        orders.append(order)
        values, costs = [0.0, *ranked.cumsum(0).tolist()], table.tolist()
        choices.append(
            {
                n: (values[n], costs[n])
                for n in range(min(least, count), count + 1)
                if n % step == 0 or n == count
            }
        )
    cheapest = sum(min(cost for _, cost in choice.values()) for choice in choices)
    if math.isnan(budget) or cheapest > budget:
        raise ResourceError(
            f"budget: {budget:g} cannot be met; the cheapest choice that is allowed costs"
            f" {cheapest:g}. Raise the budget, or lower the minimum number of units."
        )
    counts = _knapsack(choices, budget)
    return [sorted(order[:count].tolist()) for order, count in zip(orders, counts, strict=True)]


def best_units(
    scores: Sequence[torch.Tensor],
    tables: Sequence[torch.Tensor],
    is_head: Sequence[bool],
    budget: float,
    *,
    multiple: Sequence[int],
    minimum: Sequence[int],
) -> list[list[int]]:
    """`search_units`, by `two_lists` where nothing forbids it."""
    free = all(step == 1 for step in multiple) and not any(minimum)
    head, filter_ = (_unit_cost(tables, is_head, kind) for kind in (True, False))
    if free and head is not None and filter_ is not None:
        return two_lists(scores, is_head, head, filter_, budget)
    return search_units(scores, tables, budget, multiple=multiple, minimum=minimum)


def _unit_cost(tables: Sequence[torch.Tensor], is_head: Sequence[bool], kind: bool) -> float | None:
    """What every unit of a kind costs; None if they differ."""
    own = [t for t, head in zip(tables, is_head, strict=True) if head is kind and len(t) > 1]
    if not own:
        return 0.0
    unit = own[0][1]
    same = all(torch.equal(t, unit * torch.arange(len(t), dtype=t.dtype)) for t in own)
    return float(unit) if same else None


def two_lists(
    scores: Sequence[torch.Tensor],
    is_head: Sequence[bool],
    head: float,
    filter_: float,
    budget: float,
) -> list[list[int]]:
    """The same for units that cost the same within each of two kinds, without a grid.

    For every number of heads that fits, the best heads and as many of the best filters as the
    rest of the budget pays. Exact, and fast for any size.
    """
    heads, filters = kinds = [
        sorted(
            (-score, group, unit)
            for group, values in enumerate(scores)
            if is_head[group] is wanted
            for unit, score in enumerate(values.tolist())
        )
        for wanted in (True, False)
    ]
    prefix_h, prefix_f = (np.cumsum([0.0] + [-key for key, _, _ in kind]) for kind in kinds)
    if budget < 0 or math.isnan(budget):
        raise ResourceError(f"budget: {budget:g} cannot be met; keeping nothing costs 0.")
    best, choice = -1.0, (0, 0)
    for n in range(len(heads) + 1):
        left = budget - n * head
        if left < 0:
            break
        k = len(filters) if filter_ <= 0 else min(int(left // filter_), len(filters))
        while k and n * head + k * filter_ > budget:
            k -= 1
        if prefix_h[n] + prefix_f[k] > best:
            best, choice = prefix_h[n] + prefix_f[k], (n, k)
    kept: list[list[int]] = [[] for _ in scores]
    for _, group, unit in (*heads[: choice[0]], *filters[: choice[1]]):
        kept[group].append(unit)
    return [sorted(units) for units in kept]


def _knapsack(choices: Sequence[Choice], budget: float) -> list[int]:
    """Counts per group with the largest total value within the budget."""
    unit = _common_unit(choices, budget)
    dearest = sum(max(cost for _, cost in choice.values()) for choice in choices)
    # Room for the rounding of every group, so that a budget for everything keeps everything.
    budget = min(budget, dearest + len(choices) * unit)
    cells = int(budget / unit) + 1
    best = np.zeros(cells)
    picks = []
    for choice in choices:
        new = np.full(cells, -np.inf)
        pick = np.zeros(cells, dtype=np.int32)
        for n, (value, cost) in choice.items():
            # Rounding up keeps the true cost below what is charged.
            shift = math.ceil(cost / unit)
            if shift < cells:
                candidate = best[: cells - shift] + value
                better = candidate > new[shift:]
                new[shift:][better] = candidate[better]
                pick[shift:][better] = n
        best = new
        picks.append(pick)
    at = cells - 1
    if best[at] == -np.inf:
        raise ResourceError(
            f"budget: {budget:g} leaves too little room above the cheapest choice; raise it by a"
            " thousandth."
        )
    counts = []
    for pick, choice in zip(reversed(picks), reversed(choices), strict=True):
        counts.append(int(pick[at]))
        at -= math.ceil(choice[counts[-1]][1] / unit)
    return counts[::-1]


def _common_unit(choices: Sequence[Choice], budget: float) -> float:
    """The greatest common divisor of whole costs if the budget is not too many of it."""
    costs = np.array([cost for choice in choices for _, cost in choice.values()])
    if np.all(costs == np.floor(costs)) and np.all(costs < 2**53):
        divisor = int(np.gcd.reduce(costs.astype(np.int64)))
        if divisor and budget / divisor <= STEPS * 10:
            return float(divisor)
    return budget / STEPS if budget > 0 else 1.0


def _per_group(name: str, value: int | Sequence[int], groups: int, low: int) -> list[int]:
    values = [value] * groups if isinstance(value, int) else list(value)
    if len(values) != groups or any(not isinstance(v, int) or v < low for v in values):
        raise InputError(
            f"{name}: expected a whole number from {low} on, or one per group, got {value}."
        )
    return values


def rearrange_units(gradients_SU: torch.Tensor, kept: Sequence[int]) -> list[int]:
    """Kept units after rearrangement, ascending and as many as before.

    Minimises |sum of the pruned units' gradients|^2 = 1' K 1 over the pruned set, K the Gram matrix
    of the gradients. Every step allows the choice that changes nothing, so the objective never
    rises.

    Args:
        gradients_SU: gradients of the group's mask variables.
        kept: the start, from the search.
    """
    units = gradients_SU.shape[1]
    if len(set(kept)) != len(kept) or any(not 0 <= unit < units for unit in kept):
        raise InputError(f"kept: expected different units below {units}, got {list(kept)[:8]}.")
    if not 0 < len(kept) < units:
        return sorted(kept)
    gradients = gradients_SU.double()
    gram_UU = gradients.T @ gradients
    is_pruned = _all_but(kept, units)
    diagonal_U = gram_UU.diagonal()
    # sums_U[u] is the product of unit u's gradient with the sum of the pruned ones.
    sums_U = gram_UU[:, is_pruned].sum(1)
    # Every kept unit, least important first, may take the place of a pruned one.
    order = torch.sort(diagonal_U, stable=True).indices.tolist()
    for unit in [unit for unit in order if not is_pruned[unit]]:
        is_pruned[unit] = True
        sums_U += gram_UU[unit]
        gain_U = 2 * sums_U - diagonal_U
        gain_U[~is_pruned] = -torch.inf
        # Of equal gains, taking the unit out again is preferred.
        leaves = unit if gain_U[unit] >= gain_U.max() else int(gain_U.argmax())
        is_pruned[leaves] = False
        sums_U -= gram_UU[leaves]
    return (~is_pruned).nonzero().flatten().tolist()


def pruned_objective(gradients_SU: torch.Tensor, kept: Sequence[int]) -> float:
    """Mean over samples of half the squared gradient along removing everything but `kept`."""
    total_S = gradients_SU.double()[:, _all_but(kept, gradients_SU.shape[1])].sum(1)
    return float(total_S.square().mean()) / 2


def _all_but(kept: Sequence[int], units: int) -> torch.Tensor:
    is_pruned = torch.ones(units, dtype=torch.bool)
    is_pruned[list(kept)] = False
    return is_pruned
