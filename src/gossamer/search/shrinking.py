# SPDX-License-Identifier: Apache-2.0
"""`gossamer.shrink`: tries what could make a model smaller and faster, and keeps the best."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.data.files import Texts
from gossamer.errors import InputError
from gossamer.io.artifact import CARD_FILE, check_replaceable
from gossamer.io.safe_files.directories import replace_directory
from gossamer.pruning.calibration import check_same_run, model_digest
from gossamer.search.budget import Clocks, Deadline, Overhead, TimeBudget
from gossamer.search.candidates import MASKS, Mask, dense
from gossamer.search.forecast import Forecasting, MaskForecast
from gossamer.search.front import SearchLimits, best, front, nearest
from gossamer.search.pursuit import AskOthers, ask_others, pursue
from gossamer.search.records import read_record, write_record
from gossamer.search.rungs import RATES, Search
from gossamer.search.trial import (
    Point,
    Trial,
    Workshop,
    compiled,
    is_described,
    reload,
)
from gossamer.search.wording import card_text
from gossamer.search.workloads import load_workload

_KEY = "search.json"
# The last measurement may take so many times longer than on the dense model, and so many seconds.
_RESERVED, _RESERVED_SECONDS = 1.5, 2.0


@dataclass(frozen=True)
class ShrinkResult:
    """What a search found.

    Attributes:
        chosen: the point to take; the nearest one if nothing met the limits.
        met: whether it is within the limits.
        path: its artifact.
        work: folder of all candidates, where a stopped search goes on.
        quality_name: what quality is.
        dense_quality: of the dense model, on the data that nothing was chosen by.
        quality: of the chosen model, on the same data.
        points: everything measured, in the order of the search.
        forecasts: what masks were forecast to take and to break.
        skipped: what was not tried, and why.
        seconds: of the search.
        out_of_time: whether the budget ended before the ideas did.
        timed: what the milliseconds are of.
        left_out: what there was no time for.
        budget_seconds: that the search was given.
        cpu_seconds: of processors that it had.
        doubt: what else the machine did meanwhile; empty if it was quiet.
    """

    chosen: Point
    met: bool
    path: Path
    work: Path
    quality_name: str
    dense_quality: float
    quality: float
    points: tuple[Point, ...]
    forecasts: tuple[MaskForecast, ...]
    skipped: tuple[str, ...]
    seconds: float
    out_of_time: bool
    timed: str = ""
    left_out: tuple[str, ...] = ()
    budget_seconds: float = 0.0
    cpu_seconds: float = 0.0
    doubt: str = ""

    @property
    def num_pruned(self) -> int:
        """Pruned candidates that were measured."""
        return len({point.candidate for point in self.points if not point.is_dense})

    @property
    def stay_dense(self) -> bool:
        """Whether no pruned model was worth it."""
        return self.chosen.is_dense

    @property
    def front(self) -> list[Point]:
        """Points that no other one beats in everything."""
        return front(self.points)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {
            **asdict(self),
            "path": str(self.path),
            "work": str(self.work),
            "stay_dense": self.stay_dense,
            "front": [point.name for point in self.front],
        }


def shrink(  # noqa: PLR0913  (one argument per thing a user may ask for)
    model: nn.Module,
    data: Path | str | Texts | Sequence[Any],
    out: Path | str,
    *,
    tokenizer: Any = None,
    max_loss: float = 0.01,
    max_ms: float | None = None,
    max_bytes: int | None = None,
    budget_minutes: float = 20.0,
    valid_data: Any = None,
    test_data: Any = None,
    metric: Callable[[nn.Module, Any], float] | None = None,
    masks: Sequence[Mask] = MASKS,
    rates: Sequence[float] = RATES,
    contenders: AskOthers | None = None,
    beside: dict[str, bytes] | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    say: Callable[[str], None] = lambda text: None,
) -> ShrinkResult:
    """Find the fastest model that loses at most `max_loss`, or say that dense is best.

    Args:
        model: float32 on the CPU; it is not changed. A transformers encoder, decoder or sequence
            classifier for text, any module for images and batches.
        data: a file (text, JSON lines, CSV, TSV; .npz for images), what it holds, or batches.
        out: folder; candidates live in `out`.work, so that a stopped search goes on from there.
        tokenizer: of the model, from the `tokenizers` package.
        max_loss: quality that may be lost, as a fraction: 0.01 is one point of a score in points,
            or a perplexity 1 % higher.
        max_ms: of the timed call: one sequence of 128 tokens, one image, the first batch.
        max_bytes: of the tensor files.
        budget_minutes: for the whole search, in time on the wall: reading the data, candidates, the
            last measurement. No candidate is begun that would take longer than what is left, and
            one that will not be done in time is stopped at its next layer or step. Those of an
            earlier run count with the time they took then, so that a search that goes on ends as if
            it had never been stopped.
        valid_data: to choose by; None sets some of `data` aside.
        test_data: for the final figure; None sets some of `data` aside.
        metric: (model, part of the data) -> number, instead of the built-in one; see the docs.
        masks: zeros that may be tried.
        rates: of learning, for the first recovery; the best of them serves all others.
        contenders: (search, dense point) -> models of others to compare with, on the same data; no
            more of them are asked for once a quarter of the budget is used up.
        beside: tokenizer and the like, saved with the artifacts.
        on_trial: called after each candidate.
        say: gets a line whenever training has looked at a model.
    """
    limits = SearchLimits(max_loss, max_ms, max_bytes)
    for name, value in {**asdict(limits), "budget_minutes": budget_minutes}.items():
        if value is not None and not value > 0:
            raise InputError(f"shrink: {name} must be positive, got {value}.")
    target = Path(out)
    check_replaceable(target)
    clocks = Clocks()
    work = load_workload(
        model.eval(), tokenizer, data, choose=valid_data, report=test_data, metric=metric
    )
    folder = Path(f"{out}.work")
    key = {"model": model_digest(work.model), "data": work.digest}
    # The folder becomes this search's, or is it already.
    claim = folder / _KEY
    if claim.exists():
        check_same_run(folder, read_record(claim, dict[str, str]), key)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_record(claim, key)
    overhead = Overhead(folder)
    with torch.inference_mode():
        before = overhead.timed("reporting", lambda: work.reporting.measure(model))
        dense_quality = overhead.timed("choosing", lambda: work.choosing.measure(model))
    workshop = Workshop(work, folder, dense_quality, key, beside, say)
    # The last measurement is that of the report: what it took once it will take again.
    budget = TimeBudget(
        budget_minutes * 60,
        reserve=overhead.of("reporting") * _RESERVED + _RESERVED_SECONDS,
        spent=overhead.noted("setup", clocks.wall),
        quality_seconds=overhead.of("choosing"),
    )

    def deadline(seconds: float) -> Deadline:
        return Deadline(seconds, on_tick=clocks.look)

    first = workshop.try_out(dense(), deadline(math.inf))
    others, not_asked = ask_others(contenders, work, first.points[0], budget, overhead)
    forecasting = Forecasting(work, tuple(masks), folder, budget, deadline)
    search = Search(work, limits, forecasting, tuple(masks), tuple(rates))

    def take(trial: Trial) -> None:
        search.points += trial.points
        on_trial(trial)

    untried = pursue(search.candidates(), workshop, budget, take, deadline)
    left_out = (*not_asked, *forecasting.left_out, *untried)
    chosen = best(search.points, limits)
    taken = chosen or nearest(search.points, limits)
    source = workshop.path(taken.candidate)
    result = compiled(reload(source, work), work, taken.precision)
    with torch.inference_mode():
        quality = work.reporting.measure(result)
    found_it = ShrinkResult(
        chosen=taken,
        met=chosen is not None,
        path=target,
        work=folder,
        quality_name=work.choosing.name,
        dense_quality=before,
        quality=quality,
        points=(*search.points, *others),
        forecasts=tuple(forecasting.found.values()),
        skipped=tuple(search.skipped),
        seconds=clocks.wall,
        out_of_time=bool(left_out),
        timed=work.timed_text,
        left_out=left_out,
        budget_seconds=60 * budget_minutes,
        cpu_seconds=clocks.cpu,
        doubt=clocks.doubt,
    )
    with replace_directory(target, taken.size, check_replaceable) as unfinished:
        shutil.copytree(source, unfinished, dirs_exist_ok=True)
        has_images = work.example is not None
        card = card_text(found_it, is_described=is_described(source), has_images=has_images)
        (unfinished / CARD_FILE).write_text(card, encoding="utf-8")
    return found_it
