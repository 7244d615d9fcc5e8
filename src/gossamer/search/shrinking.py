# SPDX-License-Identifier: Apache-2.0
"""`gossamer.shrink`: tries what could make a model smaller and faster, and keeps the best."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.atomic import replace_directory
from gossamer.io.manifest import CARD_FILE
from gossamer.io.opened import check_replaceable
from gossamer.io.samples import Texts
from gossamer.prune.journal import check_same_run, model_digest
from gossamer.search.candidates import MASKS, Candidate, Mask
from gossamer.search.card import card_text
from gossamer.search.forecast import FORECAST_FILE, Forecast, forecast
from gossamer.search.front import Limits, best, front, nearest
from gossamer.search.load_workload import load_workload
from gossamer.search.records import read_record, write_record
from gossamer.search.rungs import RATES, Search
from gossamer.search.trial import Point, Trial, Workshop, compiled, is_described, reload
from gossamer.search.workload import Workload

_KEY = "search.json"


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
    """

    chosen: Point
    met: bool
    path: Path
    work: Path
    quality_name: str
    dense_quality: float
    quality: float
    points: tuple[Point, ...]
    forecasts: tuple[Forecast, ...]
    skipped: tuple[str, ...]
    seconds: float
    out_of_time: bool
    timed: str = ""

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
    contenders: Callable[[Workload, Point], Sequence[Point]] | None = None,
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
        budget_minutes: for all candidates together; none is begun that would take longer than what
            is left. Those of an earlier run count with the time they took then, so that a search
            that goes on ends as if it had never been stopped.
        valid_data: to choose by; None sets some of `data` aside.
        test_data: for the final figure; None sets some of `data` aside.
        metric: (model, part of the data) -> number, instead of the built-in one; see the docs.
        masks: zeros that may be tried.
        rates: of learning, for the first recovery; the best of them serves all others.
        contenders: (search, dense point) -> models of others to compare with, on the same data.
        beside: tokenizer and the like, saved with the artifacts.
        on_trial: called after each candidate.
        say: gets a line whenever training has looked at a model.
    """
    _check(max_loss, max_ms, max_bytes, budget_minutes)
    target = Path(out)
    check_replaceable(target)
    start = time.perf_counter()
    work = load_workload(
        model.eval(), tokenizer, data, choose=valid_data, report=test_data, metric=metric
    )
    folder = Path(f"{out}.work")
    key = {"model": model_digest(work.model), "data": work.digest}
    _claim(folder, key)
    with torch.inference_mode():
        dense_quality = work.choosing.measure(model)
    workshop = Workshop(work, folder, dense_quality, key, beside, say)
    limits = Limits(max_loss, max_ms, max_bytes)
    found: dict[str, Forecast] = {}

    left = budget_minutes * 60

    def forecasts() -> dict[str, Forecast]:
        nonlocal left
        if left <= 0 and not (folder / FORECAST_FILE).exists():
            return {}
        made = forecast(work, masks, folder)
        left -= made.seconds
        found.update(made.by_mask)
        return found

    search = Search(work, limits, forecasts, tuple(masks), tuple(rates))
    out_of_time = False
    pace: dict[str, float] = {}
    for candidate in search.candidates():
        is_new = not workshop.knows(candidate)
        if search.points and is_new and _needs(candidate, pace) >= left:
            out_of_time = True
            continue
        trial = workshop.try_out(candidate)
        left -= trial.seconds
        _note_pace(pace, trial)
        search.points += trial.points
        on_trial(trial)
    others = () if contenders is None else tuple(contenders(work, search.points[0]))
    points = (*search.points, *others)
    chosen = best(search.points, limits)
    taken = chosen or nearest(search.points, limits)
    source = workshop.path(taken.candidate)
    result = compiled(reload(source, work), work, taken.precision)
    with torch.inference_mode():
        quality, before = work.reporting.measure(result), work.reporting.measure(model)
    found_it = ShrinkResult(
        taken, chosen is not None, target, folder, work.choosing.name, before, quality, points,
        tuple(found.values()), tuple(search.skipped), time.perf_counter() - start, out_of_time,
        work.timed_text,
    )  # fmt: skip
    with replace_directory(target, taken.size, check_replaceable) as unfinished:
        shutil.copytree(source, unfinished, dirs_exist_ok=True)
        card = card_text(
            found_it, is_described=is_described(source), has_images=work.example is not None
        )
        (unfinished / CARD_FILE).write_text(card, encoding="utf-8")
    return found_it


def _needs(candidate: Candidate, pace: dict[str, float]) -> float:
    """Seconds that the candidate will take, by those before it; 0 if nothing is known yet."""
    if candidate.steps:
        return candidate.steps * pace.get("step", 0.0) + pace.get("other", 0.0)
    return 0.0 if candidate.is_dense else pace.get("other", 0.0)


def _note_pace(pace: dict[str, float], trial: Trial) -> None:
    if trial.steps:
        pace["step"] = trial.seconds / trial.steps
    elif not trial.points[0].is_dense:
        pace["other"] = trial.seconds


def _claim(folder: Path, key: dict[str, str]) -> None:
    """Make the folder this search's, or make sure that it is."""
    place = folder / _KEY
    if place.exists():
        check_same_run(folder, read_record(place, dict[str, str]), key)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_record(place, key)


def _check(
    max_loss: float, max_ms: float | None, max_bytes: int | None, budget_minutes: float
) -> None:
    limits = {"max_loss": max_loss, "max_ms": max_ms, "max_bytes": max_bytes}
    for name, value in {**limits, "budget_minutes": budget_minutes}.items():
        if value is not None and not value > 0:
            raise InputError(f"shrink: {name} must be positive, got {value}.")
