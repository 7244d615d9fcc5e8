# SPDX-License-Identifier: Apache-2.0
"""One candidate made and measured: quality, milliseconds and bytes of the same artifact."""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.io import load, save
from gossamer.io.atomic import write_whole
from gossamer.ops.timing import duel
from gossamer.recipes.calibration import calibration_batches, pair_loss
from gossamer.recipes.execute import execute
from gossamer.recipes.prune_stage import StageInput
from gossamer.recipes.recover_data import samples_of_file
from gossamer.run.compiler import compile as compile_model
from gossamer.search.candidates import DENSE, Candidate
from gossamer.search.workload import Workload

PRECISIONS = ("fp32", "int8")
_RESULT = "trial.json"
_TIMED_SECONDS = 1.0


@dataclass(frozen=True)
class Point:
    """A model that can be run: an artifact and the precision of its kernels.

    Attributes:
        candidate: that made it.
        precision: of its kernels.
        quality: on the data that choices are made by.
        lost: of the dense model's quality, as a fraction.
        ms: of the timed call.
        speedup: over the dense fp32 model, measured in turn with it.
        size: bytes of its tensor files.
    """

    candidate: str
    precision: str
    quality: float
    lost: float
    ms: float
    speedup: float
    size: int

    @property
    def name(self) -> str:
        """Candidate and precision."""
        return f"{self.candidate} {self.precision}"

    @property
    def is_dense(self) -> bool:
        """Whether no weight was taken out."""
        return self.candidate == DENSE


@dataclass(frozen=True)
class Trial:
    """What became of a candidate."""

    candidate: str
    seconds: float
    points: tuple[Point, ...]


class Workshop:
    """Makes and measures candidates in a folder; what is done there already is read back.

    Args:
        workload: the search.
        folder: one artifact per candidate, with its measurements in it.
        dense_quality: on the data that choices are made by.
        beside: tokenizer and the like, saved with every artifact.
    """

    def __init__(
        self,
        workload: Workload,
        folder: Path,
        dense_quality: float,
        beside: dict[str, bytes] | None = None,
    ) -> None:
        self.workload = workload
        self.folder = folder
        self.dense_quality = dense_quality
        self.beside = beside or {}

    def path(self, candidate: str) -> Path:
        """Its artifact."""
        return self.folder / candidate

    def knows(self, candidate: Candidate) -> bool:
        """Whether an earlier run has measured it."""
        return self._result(candidate).exists()

    def _result(self, candidate: Candidate) -> Path:
        return self.folder / f"{candidate.name}.{_RESULT}"

    def try_out(self, candidate: Candidate) -> Trial:
        """Make it unless an earlier run did, and measure it in every precision."""
        done = self._result(candidate)
        if done.exists():
            return _read(done)
        start = time.perf_counter()
        path = self.path(candidate.name)
        if not path.exists():
            self._make(candidate, path)
        points = tuple(self._measure(candidate, path, precision) for precision in PRECISIONS)
        trial = Trial(candidate.name, time.perf_counter() - start, points)
        write_whole(done, json.dumps(asdict(trial), indent=1).encode())
        return trial

    def _make(self, candidate: Candidate, path: Path) -> None:
        work = self.workload
        model = copy.deepcopy(work.model)
        if candidate.recipe is not None:
            batches = calibration_batches(model, work.training, work.tokenizer, work.calibration)
            given = StageInput(
                loss=pair_loss if work.training.pairs else None,
                teacher=work.model,
                samples=samples_of_file(
                    model, work.training, work.tokenizer, work.calibration.tokens
                ),
            )
            execute(candidate.recipe, model, batches, given=given)
        save(model, path, beside=self.beside)

    def _measure(self, candidate: Candidate, path: Path, precision: str) -> Point:
        work = self.workload
        model = compiled(load(path).eval(), work, precision)
        with torch.inference_mode():
            quality = work.choosing.measure(model)
            times = duel(
                _call(work.model, work.timed),
                _call(model, work.timed),
                budget_seconds=_TIMED_SECONDS,
            )
        return Point(
            candidate.name, precision, quality, work.lost(self.dense_quality, quality),
            times.second_us / 1e3, times.ratio, _bytes(path),
        )  # fmt: skip


def compiled(model: nn.Module, work: Workload, precision: str) -> nn.Module:
    """The model as it would be run."""
    return compile_model(model, tokens=(1, work.tokens), precision=precision)


def _call(model: nn.Module, timed: dict[str, torch.Tensor]) -> Callable[[], Any]:
    return lambda: model(**timed)


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def _read(path: Path) -> Trial:
    document = json.loads(path.read_text())
    points = tuple(Point(**point) for point in document["points"])
    return Trial(document["candidate"], document["seconds"], points)
