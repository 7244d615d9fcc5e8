# SPDX-License-Identifier: Apache-2.0
"""`gossamer.shrink`: tries what could make a model smaller and faster, and keeps the best."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io import load
from gossamer.io.atomic import replace_directory, write_whole
from gossamer.io.opened import check_replaceable
from gossamer.io.samples import Texts, read_samples
from gossamer.prune.journal import check_same_run, model_digest
from gossamer.recipes.calibration import is_decoder
from gossamer.search.candidates import DENSE, SPARSITIES, Candidate, one_shot, recovered, slim
from gossamer.search.front import Limits, best, front, nearest
from gossamer.search.trial import Point, Trial, Workshop, compiled
from gossamer.search.workload import Workload, make_workload

_KEY = "search.json"
# A one-shot mask that lost more than this is past saving by a short recovery.
_HOPELESS = 0.25
_SHORT, _LONG = 300, 1500
_CARRIED_ON = 2


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
        seconds: of the search.
        out_of_time: whether the budget ended before the ideas did.
    """

    chosen: Point
    met: bool
    path: Path
    work: Path
    quality_name: str
    dense_quality: float
    quality: float
    points: tuple[Point, ...]
    seconds: float
    out_of_time: bool

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
    data: Path | str | Texts,
    out: Path | str,
    *,
    tokenizer: Any = None,
    max_loss: float = 0.01,
    max_ms: float | None = None,
    max_bytes: int | None = None,
    budget_minutes: float = 20.0,
    choose: Path | str | Texts | None = None,
    report: Path | str | Texts | None = None,
    beside: dict[str, bytes] | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> ShrinkResult:
    """Find the fastest model that loses at most `max_loss`, or say that dense is best.

    Args:
        model: a transformers encoder or decoder, float32 on the CPU; it is not changed.
        data: a text, or JSON lines of sentences or of pairs with scores.
        out: folder; candidates live in `out`.work, so that a stopped search goes on from there.
        tokenizer: of the model, from the `tokenizers` package.
        max_loss: quality that may be lost, as a fraction: 0.01 is one point of a score in points,
            or a perplexity 1 % higher.
        max_ms: of the timed call, one sequence of 128 tokens.
        max_bytes: of the tensor files.
        budget_minutes: no new candidate is begun after that.
        choose: data to choose by; None sets some of `data` aside.
        report: data for the final figure; None sets some of `data` aside.
        beside: tokenizer and the like, saved with the artifacts.
        on_trial: called after each candidate.
    """
    _check(max_loss, max_ms, max_bytes, budget_minutes)
    target = Path(out)
    check_replaceable(target)
    start = time.perf_counter()
    work = make_workload(
        model.eval(), tokenizer, _texts(data), choose=_optional(choose), report=_optional(report)
    )
    folder = Path(f"{out}.work")
    _claim(folder, work)
    dense_quality = work.choosing.measure(model)
    workshop = Workshop(work, folder, dense_quality, beside)
    limits = Limits(max_loss, max_ms, max_bytes)
    points: list[Point] = []
    out_of_time = False
    for candidate in _candidates(work, points, limits):
        if (
            not workshop.knows(candidate)
            and time.perf_counter() - start > budget_minutes * 60
            and points
        ):
            out_of_time = True
            break
        trial = workshop.try_out(candidate)
        points += trial.points
        on_trial(trial)
    chosen = best(points, limits)
    taken = chosen or nearest(points, limits)
    result = compiled(load(workshop.path(taken.candidate)).eval(), work, taken.precision)
    with torch.inference_mode():
        quality, before = work.reporting.measure(result), work.reporting.measure(model)
    source = workshop.path(taken.candidate)
    with replace_directory(target, taken.size, check_replaceable) as unfinished:
        shutil.copytree(source, unfinished, dirs_exist_ok=True)
    return ShrinkResult(
        taken, chosen is not None, target, folder, work.choosing.name, before, quality,
        tuple(points), time.perf_counter() - start, out_of_time,
    )  # fmt: skip


def _candidates(work: Workload, points: list[Point], limits: Limits) -> Iterator[Candidate]:
    """What to try next; `points` grows while it is asked."""
    decoder = is_decoder(work.model)
    yield Candidate(DENSE, None)
    if not decoder:
        yield slim(0.5)
    for sparsity in SPARSITIES:
        yield one_shot(sparsity)
    # The sparsest masks that are not past saving and would be faster than what is good enough now.
    for steps in (_SHORT, _LONG):
        for sparsity in _worth_recovering(points, limits, steps):
            yield recovered(
                sparsity, steps, int8=True, decoder=decoder, after=f"oneshot-{sparsity * 100:.0f}"
            )


def _worth_recovering(points: list[Point], limits: Limits, steps: int) -> list[float]:
    before = "oneshot" if steps == _SHORT else "recovered"
    good = best(points, limits)
    found = []
    for sparsity in sorted(SPARSITIES, reverse=True):
        # Recovery changes values, not their number: the time is that of the one-shot mask.
        same = [p for p in points if p.candidate == f"oneshot-{sparsity * 100:.0f}"]
        tried = [p for p in points if p.candidate.startswith(f"{before}-{sparsity * 100:.0f}")]
        if not tried or min(p.lost for p in tried) > _HOPELESS:
            continue
        if good is not None and min(p.ms for p in same) >= good.ms:
            continue
        found.append(sparsity)
    return found[:_CARRIED_ON]


def _claim(folder: Path, work: Workload) -> None:
    """Make the folder this search's, or make sure that it is."""
    digest = hashlib.sha256()
    for text in work.training.texts:
        digest.update(text.encode())
    key = {"model": model_digest(work.model), "data": digest.hexdigest()}
    place = folder / _KEY
    if place.exists():
        check_same_run(folder, json.loads(place.read_text()), key)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(place, json.dumps(key).encode())


def _check(
    max_loss: float, max_ms: float | None, max_bytes: int | None, budget_minutes: float
) -> None:
    limits = {"max_loss": max_loss, "max_ms": max_ms, "max_bytes": max_bytes}
    for name, value in {**limits, "budget_minutes": budget_minutes}.items():
        if value is not None and not value > 0:
            raise InputError(f"shrink: {name} must be positive, got {value}.")


def _texts(data: Path | str | Texts) -> Texts:
    return data if isinstance(data, Texts) else read_samples(Path(data))


def _optional(data: Path | str | Texts | None) -> Texts | None:
    return None if data is None else _texts(data)
