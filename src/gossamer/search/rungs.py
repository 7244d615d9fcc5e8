# SPDX-License-Identifier: Apache-2.0
"""What to try next: successive halving over masks, cheapest first.

Rung 0 is dense. Rung 1 makes the masks that forecasts leave, without training. Every rung after it
trains half as many of them three times as long, from where the rung before stopped. Only masks that
would be faster (or, where bytes are limited, smaller) than the best model so far go on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gossamer.search.candidates import (
    Candidate,
    Mask,
    dense,
    dense_int8,
    fewer_tokens,
    one_shot,
    recovered,
    slim,
)
from gossamer.search.forecast import Forecast, worth_trying
from gossamer.search.front import Limits, best
from gossamer.search.trial import Point
from gossamer.search.workload import Workload

# A mask that lost more than this without training is past saving.
_HOPELESS = 0.25
# Steps of training, and the masks that get them.
_RUNGS = ((100, 4), (300, 2), (1000, 1))
# The first recovery is made with all three; the best serves all others.
_RATES = (5e-4, 1e-3, 2.5e-4)
# Forecast times this much above the best model's are not tried.
_SLOWER = 1.0
_TOKENS_KEPT = 0.8
_TOKEN_STEPS = 200


@dataclass
class Search:
    """The state of a search; `points` grows while candidates are asked for.

    Attributes:
        work: what is searched for.
        limits: of the user.
        forecasts: by mask, asked for once dense is measured.
        masks: that may be tried.
        rungs: (steps, masks) of recovery.
        points: everything measured.
        skipped: masks that were left out, and why.
    """

    work: Workload
    limits: Limits
    forecasts: Callable[[], dict[str, Forecast]]
    masks: tuple[Mask, ...]
    rungs: tuple[tuple[int, int], ...] = _RUNGS
    points: list[Point] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def candidates(self) -> Iterator[Candidate]:
        """What to try, one at a time; every answer may depend on the points before."""
        yield dense()
        yield dense_int8()
        # A decoder's table is its output layer, too.
        table = "int8" if self.work.kind == "decoder" else "int4"
        found = self.forecasts()
        if self.work.kind == "encoder":
            yield slim(0.5, table=table)
        masks = worth_trying(found, self.masks)
        tried_names = {mask.name for mask in masks}
        self.skipped += [
            f"{mask.name}: another mask is forecast to be faster and gentler."
            for mask in self.masks
            if mask.name in found and mask.name not in tried_names
        ]
        tried: list[Mask] = []
        for mask in masks:
            reason = self._hopeless(mask, found, tried)
            if reason is not None:
                self.skipped.append(f"{mask.name}: {reason}")
                continue
            tried.append(mask)
            yield one_shot(mask, table=table)
        if self.work.kind == "encoder":
            yield fewer_tokens(_TOKENS_KEPT, _TOKEN_STEPS, self.work.terms, table=table)
        yield from self._recoveries(tried)

    def _hopeless(self, mask: Mask, found: dict[str, Forecast], tried: list[Mask]) -> str | None:
        good = best(self.points, self.limits)
        ms = found[mask.name].ms
        if good is not None and self.limits.max_bytes is None and ms > good.ms * _SLOWER:
            return f"forecast at {ms:.2f} ms, slower than {good.name} ({good.ms:.2f} ms)."
        for other in tried:
            lost = self._lost(f"oneshot-{other.name}")
            if lost > _HOPELESS and found[other.name].error <= found[mask.name].error:
                return f"{other.name} is gentler and lost {lost:.0%} already."
        return None

    def _recoveries(self, masks: list[Mask]) -> Iterator[Candidate]:
        now = {mask: f"oneshot-{mask.name}" for mask in masks}
        rate: float | None = None
        for number, (steps, size) in enumerate(self.rungs):
            # The last rung trains as the int8 kernels compute.
            int8 = number == len(self.rungs) - 1
            for mask in self._carried_on(now, size):
                rates = _RATES if rate is None else (rate,)
                made = [
                    recovered(now[mask], mask, steps, each, self.work.terms, int8=int8)
                    for each in rates
                ]
                yield from made
                done = [each for each in made if self._is_measured(each.name)]
                if not done:
                    continue
                chosen = min(done, key=lambda each: self._lost(each.name))
                now[mask] = chosen.name
                if rate is None:
                    rate = rates[made.index(chosen)]

    def _carried_on(self, now: dict[Mask, str], size: int) -> list[Mask]:
        """The masks nearest to being good enough among those that would then be the best."""
        good = best(self.points, self.limits)
        worth = []
        for mask, name in now.items():
            mine = [point for point in self.points if point.candidate == name]
            if not mine or self._lost(name) > _HOPELESS:
                continue
            better = good is None or (
                min(point.ms for point in mine) < good.ms
                if self.limits.max_bytes is None
                else min(point.size for point in mine) < good.size
            )
            if better and not any(self.limits.met_by(point) for point in mine):
                worth.append(mask)
        return sorted(worth, key=lambda mask: self._lost(now[mask]))[:size]

    def _is_measured(self, name: str) -> bool:
        return any(point.candidate == name for point in self.points)

    def _lost(self, name: str) -> float:
        return min((p.lost for p in self.points if p.candidate == name), default=float("inf"))
