# SPDX-License-Identifier: Apache-2.0
"""What to try next: successive halving over masks, cheapest first.

Rung 0 is dense. Rung 1 makes the masks that forecasts leave, without training, fastest first until
one is good enough: the others are slower. Every rung after it trains fewer of them longer, from
where the rung before stopped, until time is up. Only masks that would be faster (or, where bytes
are limited, smaller) than the best model so far go on. Where training learns from labels, the dense
model is trained in every such rung, too: the data helps it as well.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field

from gossamer.search.candidates import (
    DENSE,
    DENSE_INT8,
    DENSE_TRAINED,
    MOEFIED_EXPERTS,
    Candidate,
    Mask,
    dense,
    dense_bf16,
    dense_int8,
    fewer_channels,
    fewer_tokens,
    folded_tables,
    moefied,
    moefied_recovered,
    one_shot,
    recovered,
    rounded_tables,
    slim,
    trained_dense,
    trained_tables,
    with_fewer_experts,
)
from gossamer.search.forecast import MaskForecast, worth_trying
from gossamer.search.front import SearchLimits, best
from gossamer.search.trial import Point
from gossamer.search.workloads import Workload

# A mask that lost more than this without training is past saving.
_HOPELESS = 0.4
# Steps of training, and the masks that get them.
RUNGS = ((100, 4), (300, 2), (1000, 1), (4000, 1), (16000, 1))
# Learning rates: the first recovery is made with each; the best serves all others.
RATES = (5e-4, 1e-3, 2.5e-4)
# Of these, for the dense model that is trained beside.
_DENSE_RATE = 0.2
# Part of the multiplications that a slim model has.
_SLIM = 0.5
# Of the channels of a convolutional network, those that stay, and steps of recovery.
_CHANNELS = ((0.75, 300), (0.5, 1000))
# Of its tokens, a layer passes on; the part of the dense time that is left at best.
_TOKENS_KEPT, _TOKENS_TIME = 0.8, 0.35
_TOKEN_STEPS = 200
# Of tables of click models: bits after training, bits that are trained, and the steps of that.
_TABLE_BITS, _FEWEST_BITS, _FLOAT_BITS = (8, 4), 4, 32
_TABLE_STEPS = 300
# Of dense decoders: shared and routed experts of a token, of 16, and steps of recovery.
_MOEFIED, _MOEFIED_STEPS = ((1, 3), (4, 4), (4, 8)), 100
# Of mixtures: experts that stay, what becomes of the others, zeros in what is left.
_FEWER = ((0.75, "drop", None), (0.5, "drop", None), (0.5, "merge", None), (0.5, "drop", 0.5))


@dataclass
class Search:
    """The state of a search; `points` grows while candidates are asked for.

    Attributes:
        work: what is searched for.
        limits: of the user.
        forecasts: by mask, asked for once dense is measured.
        masks: that may be tried.
        rates: of learning, for the first recovery.
        points: everything measured.
        skipped: masks that were left out, and why.
    """

    work: Workload
    limits: SearchLimits
    forecasts: Callable[[], dict[str, MaskForecast]]
    masks: tuple[Mask, ...]
    rates: tuple[float, ...] = RATES
    points: list[Point] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def candidates(self) -> Iterator[Candidate]:
        """What to try, one at a time; every answer may depend on the points before."""
        yield dense()
        yield dense_int8()
        yield dense_bf16()
        # A decoder's table is its output layer, too.
        table = {"decoder": "int8", "clicks": "packed-int4"}.get(self.work.kind, "int4")
        if self.work.kind == "clicks" and self.work.has_trained_tables:
            table = "packed"
            yield rounded_tables(None)
        elif self.work.kind == "clicks":
            yield from self._table_candidates()
        found = self.forecasts()
        tried: list[Mask] = []
        masks = worth_trying(found, self.masks)
        self.skipped += [
            f"{mask.name}: another mask is forecast to be faster and gentler."
            for mask in self.masks
            if mask.name in found and mask not in masks
        ]
        # Fastest first.
        for mask in sorted(masks, key=lambda mask: (found[mask.name].ms, -mask.sparsity)):
            reason = self._reason_against(mask, found, tried)
            if reason is not None:
                self.skipped.append(f"{mask.name}: {reason}")
                continue
            tried.append(mask)
            yield one_shot(mask, table=table, ignore=self.work.kept_dense)
        yield from self._recoveries(tried)
        if self.work.kind == "encoder":
            yield from self._without_masks(table)
        if self.work.can_lose_channels:
            for keep, steps in _CHANNELS:
                yield fewer_channels(keep, steps, self.rates[0], self.work.aim)
        yield from self._mixtures(table)

    def _mixtures(self, table: str) -> Iterator[Candidate]:
        """Parts of feed-forward blocks for each token, or fewer experts where there are some."""
        if self.work.has_experts:
            for keep, how, sparsity in _FEWER:
                yield with_fewer_experts(keep, how, table=table, sparsity=sparsity)
        elif self.work.kind == "decoder" and self.work.can_get_experts(MOEFIED_EXPERTS):
            for shared, top_k in _MOEFIED:
                made = moefied(shared, top_k, table=table)
                yield made
                if self._measured(made.name) and self._lost(made.name) <= _HOPELESS:
                    rate = self.rates[0]
                    yield moefied_recovered(made.name, _MOEFIED_STEPS, rate, self.work.aim)

    def _table_candidates(self) -> Iterator[Candidate]:
        """Smaller tables under MLPs that stay as they are: most bytes of a click model."""
        for bits in _TABLE_BITS:
            yield rounded_tables(bits)
        for bits in (_FLOAT_BITS, _FEWEST_BITS):
            yield folded_tables(bits)
        made = {
            rate: trained_tables(_FEWEST_BITS, _TABLE_STEPS, rate, self.work.aim)
            for rate in self.rates
        }
        yield from made.values()

    def _reason_against(
        self, mask: Mask, found: dict[str, MaskForecast], tried: list[Mask]
    ) -> str | None:
        good = best(self.points, self.limits)
        ms = found[mask.name].ms
        if good is not None and self.limits.max_bytes is None and ms >= good.ms:
            return f"forecast at {ms:.2f} ms, no faster than {good.name} ({good.ms:.2f} ms)."
        for other in tried:
            is_gentler = found[other.name].error <= found[mask.name].error
            lost = self._lost(name := f"oneshot-{other.name}")
            if is_gentler and lost > _HOPELESS and self._measured(name):
                return f"{other.name} is gentler and lost {lost:.0%} already."
        return None

    def _without_masks(self, table: str) -> Iterator[Candidate]:
        """Fewer heads and filters, or fewer tokens: tried if they could be faster at best."""
        times = {point.candidate: point.ms for point in self.points}
        good = best(self.points, self.limits)
        fastest = float("inf") if good is None else good.ms
        tokens = fewer_tokens(_TOKENS_KEPT, _TOKEN_STEPS, self.work.aim, table=table)
        for source, part, title, candidate in (
            (DENSE_INT8, _SLIM, f"slim-{_SLIM:.0%}", slim(_SLIM, table=table)),
            (DENSE, _TOKENS_TIME, "tokens", tokens),
        ):
            if times.get(source, 0.0) * part < fastest:
                yield candidate
            else:
                self.skipped.append(f"{title}: could not be faster than the best so far.")

    def _recoveries(self, masks: list[Mask]) -> Iterator[Candidate]:
        now = {mask: f"oneshot-{mask.name}" for mask in masks}
        rival: str | None = None
        # Weights that are all there are disturbed by rates that pruned ones need.
        rates, rival_rates = self.rates, tuple(rate * _DENSE_RATE for rate in self.rates)
        aim = self.work.aim
        for steps, size in RUNGS:
            # What may be the last training is done as the int8 kernels compute.
            int8 = size == 1
            carried = self._carried_on(now, size)
            for mask in carried:
                made = {
                    rate: recovered(now[mask], mask, steps, rate, aim, int8=int8) for rate in rates
                }
                chosen = yield from self._best_of(made)
                if chosen is not None:
                    rates, now[mask] = (chosen,), made[chosen].name
            if carried and aim.get("hardness"):
                made = {rate: trained_dense(rival, steps, rate, aim) for rate in rival_rates}
                chosen = yield from self._best_of(made)
                if chosen is not None:
                    rival, rival_rates = made[chosen].name, (chosen,)
                elif rival is None:
                    self.skipped.append(
                        f"{DENSE_TRAINED}-{steps}: no time was left, so that nothing tells what the"
                        " data taught from what zeros cost."
                    )

    def _best_of(self, made: Mapping[float, Candidate]) -> Generator[Candidate, None, float | None]:
        """Ask for all; the rate of the one that lost least, None if none was measured."""
        yield from made.values()
        done = [rate for rate, each in made.items() if self._measured(each.name)]
        return min(done, key=lambda rate: self._lost(made[rate].name), default=None)

    def _carried_on(self, now: dict[Mask, str], size: int) -> list[Mask]:
        """The masks nearest to being good enough among those that would then be the best."""
        good = best(self.points, self.limits)
        worth = []
        for mask, name in now.items():
            mine = self._measured(name)
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

    def _measured(self, name: str) -> list[Point]:
        return [point for point in self.points if point.candidate == name]

    def _lost(self, name: str) -> float:
        return min((point.lost for point in self._measured(name)), default=float("inf"))
