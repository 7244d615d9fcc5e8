# SPDX-License-Identifier: Apache-2.0
"""Dense or which kernel for one layer and token count: measured, recorded, the same on all ranks.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from gossamer import settings
from gossamer.errors import InputError
from gossamer.ops.dispatch import PRECISIONS, Kernel, kernel_names
from gossamer.ops.timing import Duel, duel
from gossamer.run.contenders import Contenders
from gossamer.run.cost_table import CostKey, CostTable
from gossamer.run.packed import Choice

Call = Callable[[], object]
Timer = Callable[[Call, Call], Duel]

# Sparse must win by this much: within it, the choice would be noise.
_MARGIN = 1.05
# A verdict this close is measured again, since one slow moment could turn it.
_CLOSE = (0.8, 1.4)
_MORE_TURNS = 3
# Without measurements: kept fraction below which the sparse kernel won on every shape tried.
_RULE_DENSITY_MANY = 0.5
_RULE_DENSITY_FEW = 0.3
_RULE_FEW_TOKENS = 16


@dataclass(frozen=True)
class Rival:
    """A kernel's run of one layer; `key` says what its time holds for.

    `unmeasured` is the choice where nothing is measured; None for the rule of densities.
    """

    kernel: str
    key: CostKey
    run: Call
    unmeasured: Choice | None = None


class Chooser:
    """Measures a layer against its dense form, at most once per kernel, shape, density and tokens.

    Args:
        table: where measurements are kept.
        timer: measures two callables; tests replace it.
    """

    def __init__(self, table: CostTable | None = None, timer: Timer = duel) -> None:
        self._table = CostTable() if table is None else table
        self._timer = timer
        self._tune = settings.tuning_enabled()

    def choose(self, contenders: Contenders, tokens: int) -> Choice:
        """The fastest of dense and the kernels. In a process group rank 0 decides for all."""
        kernels = contenders.for_tokens(tokens)
        if not kernels:
            return Choice(tokens, "dense", None, None, "no kernel")
        if not self._tune:
            # The lowest precision is what was asked for; its first kernel is the general one.
            lowest = max(kernels, key=lambda kernel: PRECISIONS.index(kernel.precision))
            return _by_rule(lowest.name, contenders.density, tokens)
        times = [self._time(contenders, k, tokens) if _rank() == 0 else None for k in kernels]
        names = [kernel.name for kernel in kernels]
        return _by_time(tokens, dict(zip(names, _from_rank_zero(times), strict=True)))

    def _time(self, contenders: Contenders, kernel: Kernel, tokens: int) -> Duel:
        """Dense against one kernel, from the table or measured now."""
        num_rows, num_columns = contenders.weight_RK.shape
        key = CostKey(
            kernel=contenders.cost_name(kernel),
            rows=num_rows,
            columns=num_columns,
            pattern=str(contenders.sparse.pattern),
            density=contenders.density,
            tokens=tokens,
            threads=torch.get_num_threads(),
        )
        times = self._table.get(key)
        if times is None:
            times = _measure(contenders, kernel, tokens, self._timer)
            self._table.put(key, times)
        return times

    def choose_among(self, sparse: Sequence[Rival], dense: Call) -> Choice:
        """The fastest of callables that do the same; the lowest precision comes last."""
        tokens = sparse[0].key.tokens
        if not self._tune:
            lowest = sparse[-1]
            return lowest.unmeasured or _by_rule(lowest.kernel, lowest.key.density, tokens)
        times = [self._time_rival(one, dense) if _rank() == 0 else None for one in sparse]
        names = [one.kernel for one in sparse]
        return _by_time(tokens, dict(zip(names, _from_rank_zero(times), strict=True)))

    def _time_rival(self, rival: Rival, dense: Call) -> Duel:
        times = self._table.get(rival.key) or _duel(dense, rival.run, self._timer)
        self._table.put(rival.key, times)
        return times

    def save(self) -> None:
        """Write new measurements to disk."""
        if self._tune and _rank() == 0:
            self._table.save()


class Forced(Chooser):
    """Takes one kernel wherever it accepts the layer, and dense elsewhere; measures nothing."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        known = kernel_names("linear")
        if kernel not in known:
            raise InputError(f"compile: no kernel is called {kernel!r}. Known: {', '.join(known)}.")
        self._kernel = kernel

    def choose(self, contenders: Contenders, tokens: int) -> Choice:
        """The forced kernel, or dense with the reason."""
        if any(kernel.name == self._kernel for kernel in contenders.kernels):
            return Choice(tokens, self._kernel, None, None, "forced")
        why = f"{self._kernel} does not take {contenders.sparse.pattern} at this precision"
        return Choice(tokens, "dense", None, None, why)


def _measure(contenders: Contenders, kernel: Kernel, tokens: int, timer: Timer) -> Duel:
    weight_RK, run = contenders.weight_RK, contenders.packed(kernel)
    generator = torch.Generator().manual_seed(0)
    x_TK = torch.randn(tokens, weight_RK.shape[1], generator=generator).to(weight_RK.dtype)
    bias = weight_RK.new_zeros(weight_RK.shape[0])
    return _duel(lambda: F.linear(x_TK, weight_RK, bias), lambda: run(x_TK, bias, "none"), timer)


def _duel(dense: Call, sparse: Call, timer: Timer) -> Duel:
    with torch.inference_mode():
        times = timer(dense, sparse)
        for _ in range(_MORE_TURNS):
            if not _CLOSE[0] < times.ratio < _CLOSE[1]:
                break
            again = timer(dense, sparse)
            times = Duel(min(times.first_us, again.first_us), min(times.second_us, again.second_us))
    return times


def _by_time(tokens: int, times: dict[str, Duel]) -> Choice:
    # Each kernel was timed in turn with dense, so ratios compare where times of two moments do not.
    ranking = sorted(times, key=lambda name: times[name].ratio, reverse=True)
    best = times[ranking[0]]
    wins = best.ratio >= _MARGIN
    why = f"{best.ratio:.2f}x dense" if wins else f"dense is faster ({best.ratio:.2f}x)"
    if len(ranking) > 1:
        why += f"; {ranking[1]} {times[ranking[1]].ratio:.2f}x"
    return Choice(tokens, ranking[0] if wins else "dense", best.first_us, best.second_us, why)


def _by_rule(kernel: str, density: float, tokens: int) -> Choice:
    limit = _RULE_DENSITY_FEW if tokens < _RULE_FEW_TOKENS else _RULE_DENSITY_MANY
    wins = density <= limit
    sign = "<=" if wins else ">"
    why = f"fixed rule (GOSSAMER_TUNE=off): density {density:.2f} {sign} {limit}"
    return Choice(tokens, kernel if wins else "dense", None, None, why)


def _rank() -> int:
    return dist.get_rank() if _is_distributed() else 0


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _from_rank_zero(times: Sequence[Duel | None]) -> list[Duel]:
    """Rank 0's measurements on every rank: clocks differ, and other kernels round differently."""
    measured = [(t.first_us, t.second_us) if t is not None else (0.0, 0.0) for t in times]
    payload = torch.tensor(measured, dtype=torch.float64)
    if _is_distributed():
        dist.broadcast(payload, src=0)
    return [Duel(*pair) for pair in payload.tolist()]
