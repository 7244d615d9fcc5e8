# SPDX-License-Identifier: Apache-2.0
"""Which units to keep for the most score within a budget: an exact multiple-choice knapsack.

Per group the option n is "keep the n units with the highest scores". Equal scores: the lower
index first, and of equal totals the one with fewer units in the later groups.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from gossamer.errors import InputError, ResourceError

# Costs that are no multiples of a common unit are rounded up to this part of the budget.
STEPS = 20_000


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
    orders, values, options = _options(scores, tables, multiple, minimum)
    costs = [table.double().numpy() for table in tables]
    least = sum(float(cost[option].min()) for cost, option in zip(costs, options, strict=True))
    if math.isnan(budget) or least > budget:
        raise ResourceError(
            f"budget: {budget:g} cannot be met; the cheapest choice that is allowed costs"
            f" {least:g}. Raise the budget, or lower the minimum number of units."
        )
    counts = _knapsack(values, costs, options, budget)
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
    units = [_unit_cost(tables, is_head, kind) for kind in (True, False)]
    head, filter_ = units
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
    kinds = []
    for wanted in (True, False):
        chosen = [
            (-float(score), group, unit)
            for group, values in enumerate(scores)
            if is_head[group] is wanted
            for unit, score in enumerate(values.tolist())
        ]
        chosen.sort()
        kinds.append(chosen)
    heads, filters = kinds
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


def _options(
    scores: Sequence[torch.Tensor],
    tables: Sequence[torch.Tensor],
    multiple: int | Sequence[int],
    minimum: int | Sequence[int],
) -> tuple[list[torch.Tensor], list[np.ndarray], list[np.ndarray]]:
    multiples = _per_group("multiple", multiple, len(scores), low=1)
    minimums = _per_group("minimum", minimum, len(scores), low=0)
    orders, values, options = [], [], []
    for score, table, step, least in zip(scores, tables, multiples, minimums, strict=True):
        if len(table) != len(score) + 1:
            raise InputError(
                f"a table of {len(table)} costs for {len(score)} units; one more is due."
            )
        if not torch.isfinite(score).all() or (len(score) and score.min() < 0):
            raise InputError("scores: must be finite and not negative; check data and weights.")
        if not torch.isfinite(table).all() or table.min() < 0:
            raise InputError("costs: must be finite and not negative.")
        order = torch.sort(score.double(), descending=True, stable=True).indices
        orders.append(order)
        values.append(np.concatenate([[0.0], score.double()[order].cumsum(0).numpy()]))
        count = len(score)
        allowed = [n for n in range(count + 1) if n % step == 0 or n == count]
        options.append(np.array([n for n in allowed if n >= min(least, count)]))
    return orders, values, options


def _knapsack(
    values: list[np.ndarray], costs: list[np.ndarray], options: list[np.ndarray], budget: float
) -> list[int]:
    """Counts per group with the largest total value within the budget."""
    unit = _common_unit(costs, options, budget)
    dearest = sum(float(cost[o].max()) for cost, o in zip(costs, options, strict=True))
    # Room for the rounding of every group, so that a budget for everything keeps everything.
    budget = min(budget, dearest + len(costs) * unit)
    cells = int(budget / unit) + 1
    best = np.zeros(cells)
    picks = []
    for value, cost, option in zip(values, costs, options, strict=True):
        new = np.full(cells, -np.inf)
        pick = np.zeros(cells, dtype=np.int32)
        for n in option:
            # Rounding up keeps the true cost below what is charged.
            shift = math.ceil(float(cost[n]) / unit)
            if shift >= cells:
                continue
            candidate = best[: cells - shift] + value[n]
            better = candidate > new[shift:]
            new[shift:][better] = candidate[better]
            pick[shift:][better] = n
        best = new
        picks.append((pick, cost))
    at = cells - 1
    if best[at] == -np.inf:
        raise ResourceError(
            f"budget: {budget:g} leaves too little room above the cheapest choice; raise it by a"
            " thousandth."
        )
    counts = []
    for pick, cost in reversed(picks):
        n = int(pick[at])
        counts.append(n)
        at -= math.ceil(float(cost[n]) / unit)
    return counts[::-1]


def _common_unit(costs: list[np.ndarray], options: list[np.ndarray], budget: float) -> float:
    """The greatest common divisor of whole costs if the budget is not too many of it."""
    listed = np.concatenate([cost[option] for cost, option in zip(costs, options, strict=True)])
    if np.all(listed == np.floor(listed)) and np.all(listed < 2**53):
        divisor = int(np.gcd.reduce(listed.astype(np.int64)))
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
