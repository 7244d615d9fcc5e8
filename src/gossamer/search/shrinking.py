# SPDX-License-Identifier: Apache-2.0
"""`gossamer.shrink`: tries what could make a model smaller and faster, and keeps the best.

Candidates are tried one after the other while there is time (`pursue`), and models of others are
asked for. What was not tried is said.
"""

import math
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.data.files import Texts
from gossamer.errors import InputError
from gossamer.io.artifact.beside import CARD_FILE
from gossamer.io.artifact.destination import check_replaceable
from gossamer.io.safe_files.directories import replace_directory
from gossamer.pruning.calibration.journal import check_same_run, model_digest
from gossamer.running.decoder import DecoderEngine
from gossamer.search.budget import (
    NEVER,
    Clocks,
    Deadline,
    OutOfTime,
    Overhead,
    Stopped,
    TimeBudget,
)
from gossamer.search.candidates import DENSE, MASKS, Candidate, Mask, dense
from gossamer.search.forecast import Forecasting
from gossamer.search.front import SearchLimits, ShrinkResult, best, nearest
from gossamer.search.long_texts import choose_keys, long_parts_of
from gossamer.search.page import card_text
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
from gossamer.search.workloads import Workload, load_workload

AskOthers = Callable[[Workload, Point], Iterable[Point]]
_KEY = "search.json"
# Of the budget, for models of others.
_OTHERS_PART = 0.25
# The last measurement may take so many times longer than on the dense model, and so many seconds.
_RESERVED, _RESERVED_SECONDS = 1.5, 2.0


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
    length: int | None = None,
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
        length: tokens of the texts that a decoder is to read: rules of attention and types of keys
            are tried on the model that is taken, too.
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
    long_parts = None if length is None else long_parts_of(work, length)
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
        reserve=overhead.held["reporting"] * _RESERVED + _RESERVED_SECONDS,
        spent=overhead.noted("setup", clocks.wall),
        quality_seconds=overhead.held["choosing"],
    )

    def deadline(seconds: float) -> Deadline:
        return Deadline(seconds, on_tick=clocks.look)

    first = workshop.try_out(dense(), deadline(math.inf))
    workshop.torch_ms = first.points[0].ms * first.points[0].speedup
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
    reading = None
    if length is not None and long_parts is not None:
        engine = DecoderEngine(reload(source, work), taken.precision, context=length)
        start = time.perf_counter()
        reading = choose_keys(
            engine,
            *long_parts,
            work.tokenizer,
            max_loss,
            seconds_left=lambda: budget.left - (time.perf_counter() - start),
            say=say,
        )
        left_out += reading.left_out
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
        long_texts=reading,
    )
    with replace_directory(target, taken.size, check_replaceable) as unfinished:
        shutil.copytree(source, unfinished, dirs_exist_ok=True)
        has_images = work.example is not None
        card = card_text(found_it, is_described=is_described(source), has_images=has_images)
        (unfinished / CARD_FILE).write_text(card, encoding="utf-8")
    return found_it


def pursue(
    candidates: Iterator[Candidate],
    maker: Workshop,
    budget: TimeBudget,
    take: Callable[[Trial], None],
    set_deadline: Callable[[float], Deadline],
) -> list[str]:
    """Try what there is time for; returns what was left out, and why.

    Args:
        candidates: each may depend on what was taken before.
        maker: of candidates.
        budget: is charged with the seconds that are on record, now or from earlier runs. Dense is
            always measured: nothing can be said without it.
        take: gets every trial.
        set_deadline: for so many seconds from now.
    """
    left_out = []
    for candidate in candidates:
        earlier, reason = NEVER, ""
        if not maker.knows(candidate):
            earlier = maker.stopped(candidate)
            reason = _reason_against(candidate, earlier, budget)
        budget.spent += earlier.seconds
        if reason:
            budget.learn_stopped(candidate, earlier)
            left_out.append(f"{candidate.name}: {reason}")
            continue
        deadline = set_deadline(math.inf if candidate.name == DENSE else budget.for_making)
        try:
            trial = maker.try_out(candidate, deadline)
        except OutOfTime as stop:
            stopped = maker.stopped(candidate)
            budget.spent += stop.seconds
            budget.learn_stopped(candidate, stopped)
            left_out.append(f"{candidate.name}: {_stopped_text(stopped)}")
            continue
        budget.spent += trial.seconds - earlier.seconds
        budget.learn(candidate, trial.making, trial.seconds - trial.making)
        take(trial)
    return left_out


def _reason_against(candidate: Candidate, earlier: Stopped, budget: TimeBudget) -> str:
    """Why it is not begun, or not gone on with; empty for dense, which always is."""
    needs, left = budget.needs(candidate), budget.left
    if earlier != NEVER:
        if budget.for_making <= earlier.allowed:
            return _stopped_text(earlier)
        needs, left = earlier.needs, left - earlier.seconds
    if needs < left or candidate.name == DENSE:
        return ""
    if left <= 0:
        return "the time was up."
    return f"would take about {seconds_text(needs)}, {seconds_text(left)} were left."


def _stopped_text(stopped: Stopped) -> str:
    more = f"would have taken {seconds_text(stopped.needs)} more"
    return (
        f"stopped after {seconds_text(stopped.seconds)},"
        f" {more if stopped.needs else 'its time was up'}."
    )


def seconds_text(seconds: float) -> str:
    """`40 s` or `3.5 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def ask_others(
    contenders: AskOthers | None,
    work: Workload,
    dense_point: Point,
    budget: TimeBudget,
    overhead: Overhead,
) -> tuple[list[Point], list[str]]:
    """Models of others, as many as a part of the budget allows, and what is to be said of it."""
    points: list[Point] = []
    if contenders is None:
        return points, []
    start, is_cut = time.perf_counter(), budget.left <= 0
    asked: Iterable[Point] = () if is_cut else contenders(work, dense_point)
    for point in asked:
        points.append(point)
        is_cut = time.perf_counter() - start > _OTHERS_PART * budget.seconds
        if is_cut:
            break
    if isinstance(asked, Generator):
        asked.close()
    budget.spent += overhead.noted("others", time.perf_counter() - start)
    return points, [f"other engines: not all were asked, after {len(points)}."] if is_cut else []
