# SPDX-License-Identifier: Apache-2.0
"""Dense or sparse for one layer and token count: measured, recorded, the same on all ranks.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

from gossamer import settings
from gossamer.ops.dispatch import Prepared
from gossamer.run.cost_table import CostKey, CostTable
from gossamer.run.packed import Choice
from gossamer.run.timing import Duel, duel

Run = Callable[[], object]
Timer = Callable[[Run, Run], Duel]

# Sparse must win by this much: within it, the choice would be noise.
_MARGIN = 1.05
# A verdict this close is measured again, since one slow moment could turn it.
_CLOSE = (0.8, 1.4)
_MORE_TURNS = 3
# Without measurements: kept fraction below which the sparse kernel won on every shape tried.
_RULE_DENSITY_MANY = 0.5
_RULE_DENSITY_FEW = 0.3
_RULE_FEW_TOKENS = 16


class Chooser:
    """Measures a layer against its dense form, at most once per shape, density and token count.

    Args:
        table: where measurements are kept.
        timer: measures two callables; tests replace it.
    """

    def __init__(self, table: CostTable | None = None, timer: Timer = duel) -> None:
        self._table = CostTable() if table is None else table
        self._timer = timer
        self._tune = settings.tuning_enabled()

    def choose(
        self, prepared: Prepared, weight_RK: torch.Tensor, density: float, tokens: int
    ) -> Choice:
        """The faster of dense and sparse. In a process group rank 0 decides for all."""
        if not self._tune:
            return _by_rule(prepared.kernel, density, tokens)
        num_rows, num_columns = weight_RK.shape
        threads = torch.get_num_threads()
        key = CostKey(prepared.kernel, num_rows, num_columns, density, tokens, threads)
        times = self._table.get(key) if _rank() == 0 else None
        if times is None and _rank() == 0:
            times = _measure(prepared, weight_RK, tokens, self._timer)
            self._table.put(key, times)
        return _by_time(prepared.kernel, tokens, _from_rank_zero(times))

    def choose_between(self, kernel: str, key: CostKey, dense: Run, sparse: Run) -> Choice:
        """The faster of two callables that do the same; `key` says what the result holds for."""
        if not self._tune:
            return _by_rule(kernel, key.density, key.tokens)
        times = self._table.get(key) if _rank() == 0 else None
        if times is None and _rank() == 0:
            times = _time(dense, sparse, self._timer)
            self._table.put(key, times)
        return _by_time(kernel, key.tokens, _from_rank_zero(times))

    def save(self) -> None:
        """Write new measurements to disk."""
        if self._tune and _rank() == 0:
            self._table.save()


def _measure(prepared: Prepared, weight_RK: torch.Tensor, tokens: int, timer: Timer) -> Duel:
    generator = torch.Generator().manual_seed(0)
    x_TK = torch.randn(tokens, weight_RK.shape[1], generator=generator)
    bias = torch.zeros(weight_RK.shape[0])
    return _time(
        lambda: F.linear(x_TK, weight_RK, bias), lambda: prepared.run(x_TK, bias, "none"), timer
    )


def _time(dense: Run, sparse: Run, timer: Timer) -> Duel:
    with torch.inference_mode():
        times = timer(dense, sparse)
        for _ in range(_MORE_TURNS):
            if not _CLOSE[0] < times.ratio < _CLOSE[1]:
                break
            again = timer(dense, sparse)
            times = Duel(min(times.first_us, again.first_us), min(times.second_us, again.second_us))
    return times


def _by_time(kernel: str, tokens: int, times: Duel) -> Choice:
    wins = times.ratio >= _MARGIN
    why = f"{times.ratio:.2f}x dense" if wins else f"dense is faster ({times.ratio:.2f}x)"
    return Choice(tokens, kernel if wins else "dense", times.first_us, times.second_us, why)


def _by_rule(kernel: str, density: float, tokens: int) -> Choice:
    limit = _RULE_DENSITY_FEW if tokens < _RULE_FEW_TOKENS else _RULE_DENSITY_MANY
    wins = density <= limit
    sign = "<=" if wins else ">"
    why = f"fixed rule (GOSSAMER_TUNE=off): density {density:.2f} {sign} {limit}"
    return Choice(tokens, kernel if wins else "dense", None, None, why)


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _from_rank_zero(times: Duel | None) -> Duel:
    """Rank 0's measurement on every rank: clocks differ, and other kernels round differently."""
    if not (dist.is_available() and dist.is_initialized()):
        assert times is not None  # noqa: S101  (a single process always measured)
        return times
    payload = torch.zeros(2, dtype=torch.float64)
    if times is not None:
        payload[:] = torch.tensor([times.first_us, times.second_us], dtype=torch.float64)
    dist.broadcast(payload, src=0)
    return Duel(*payload.tolist())
