# SPDX-License-Identifier: Apache-2.0
"""One candidate made and measured: quality, milliseconds and bytes of the same artifact."""

import copy
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gossamer.io import load, save
from gossamer.io.opened import open_artifact
from gossamer.nn.token_pruning import TokenPrunedEncoder
from gossamer.ops.timing import duel
from gossamer.prune.journal import DiskJournal
from gossamer.recipes.execute import execute
from gossamer.recipes.kept_run import KeptRun
from gossamer.recipes.prune_stage import StageInput
from gossamer.run.compiler import compile as compile_model
from gossamer.run.ragged import run_packed
from gossamer.search.candidates import DENSE, Candidate, has_all_weights, is_trained_dense
from gossamer.search.records import read_record, write_record
from gossamer.search.workload import Workload
from gossamer.train.run_folder import RunFolder

_RESULT = "trial.json"
_JOURNAL = ".journal"
_TIMED_SECONDS = 1.0
_SEED = 0


@dataclass(frozen=True)
class Point:
    """A model that can be run: an artifact and the precision of its kernels, or another's engine.

    Attributes:
        candidate: that made it, or the title of an engine.
        precision: of its kernels.
        quality: on the data that choices are made by.
        lost: of the dense model's quality, as a fraction.
        ms: of the timed call.
        speedup: over the dense fp32 model, measured in turn with it.
        size: bytes of its tensor files.
        is_ours: whether there is an artifact to take; otherwise it is here to be compared with.
    """

    candidate: str
    precision: str
    quality: float
    lost: float
    ms: float
    speedup: float
    size: int
    is_ours: bool = True

    @property
    def name(self) -> str:
        """Candidate and precision; the dense model in int8 or bf16 says it once."""
        if is_trained_dense(self.candidate):
            return f"{self.candidate.replace('-', ' ', 1)} {self.precision}"
        if has_all_weights(self.candidate) and self.candidate != DENSE:
            return self.candidate.replace("-", " ")
        return f"{self.candidate} {self.precision}"

    @property
    def is_dense(self) -> bool:
        """Whether no weight was taken out."""
        return has_all_weights(self.candidate) or not self.is_ours


@dataclass(frozen=True)
class Trial:
    """What became of a candidate."""

    candidate: str
    seconds: float
    points: tuple[Point, ...]
    steps: int = 0


class Workshop:
    """Makes and measures candidates in a folder; what is done there already is read back.

    Args:
        workload: the search.
        folder: one artifact per candidate, with its measurements beside it.
        dense_quality: on the data that choices are made by.
        key: what the search is, for runs that go on.
        beside: tokenizer and the like, saved with every artifact.
        say: gets a line whenever training has looked at the model.
    """

    def __init__(
        self,
        workload: Workload,
        folder: Path,
        dense_quality: float,
        key: dict[str, str],
        beside: dict[str, bytes] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.workload = workload
        self.folder = folder
        self.dense_quality = dense_quality
        self.key = key
        self.beside = beside or {}
        self.say = say

    def path(self, candidate: str) -> Path:
        """Its artifact."""
        return self.folder / candidate

    def knows(self, candidate: Candidate) -> bool:
        """Whether an earlier run has measured it."""
        return self._result(candidate).exists()

    def try_out(self, candidate: Candidate) -> Trial:
        """Make it unless an earlier run did, and measure it in every precision."""
        done = self._result(candidate)
        if done.exists():
            return read_record(done, Trial)
        start = time.perf_counter()
        path = self.path(candidate.name)
        if not path.exists():
            self._make(candidate, path)
        points = tuple(
            self._measure(candidate, path, precision) for precision in candidate.precisions
        )
        trial = Trial(candidate.name, time.perf_counter() - start, points, candidate.steps)
        write_record(done, trial)
        self._forget_run(candidate)
        return trial

    def _result(self, candidate: Candidate) -> Path:
        return self.folder / f"{candidate.name}.{_RESULT}"

    def _make(self, candidate: Candidate, path: Path) -> None:
        work = self.workload
        if candidate.after is None:
            model = copy.deepcopy(work.model)
        else:
            model = reload(self.path(candidate.after), work)
        if candidate.recipe is None:
            save(model, path, beside=self.beside)
            return
        run = RunFolder(path)
        key = {**self.key, "candidate": candidate.name, "recipe": repr(candidate.recipe)}
        # Stages have seeds of their own; what has none must not depend on what ran before.
        with run.opened(resume=True), torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            given = StageInput(
                loss=work.loss,
                journal=DiskJournal(self.path(f"{candidate.name}{_JOURNAL}"), key),
                teacher=copy.deepcopy(work.model),
                samples=work.samples() if candidate.steps else None,
                kept=KeptRun(run, key) if candidate.steps else None,
                say=lambda text: self.say(f"{candidate.name}: {text}"),
            )
            batches = work.batches() if candidate.recipe.needs_data else None
            execute(candidate.recipe, model, batches, given=given)
            save(model, path, beside=self.beside)

    def _forget_run(self, candidate: Candidate) -> None:
        """Checkpoints and solved layers are of no use once the artifact is there."""
        shutil.rmtree(self.path(f"{candidate.name}{_JOURNAL}"), ignore_errors=True)
        shutil.rmtree(self.path(f"{candidate.name}.run"), ignore_errors=True)

    def _measure(self, candidate: Candidate, path: Path, precision: str) -> Point:
        work = self.workload
        model = compiled(reload(path, work), work, precision)
        with torch.inference_mode():
            # The dense model itself has been measured already.
            as_it_is = candidate.recipe is None
            quality = self.dense_quality if as_it_is else work.choosing.measure(model)
            calls = work.timed.call(work.model), work.timed.call(model)
            times = duel(*calls, budget_seconds=_TIMED_SECONDS)
        lost = work.lost(self.dense_quality, quality)
        return Point(
            candidate.name, precision, quality, lost if math.isfinite(lost) else math.inf,
            times.second_us / 1e3, times.ratio, tensor_bytes(path),
        )  # fmt: skip


def is_described(path: Path) -> bool:
    """Whether an artifact says how its model is built."""
    with open_artifact(path) as artifact:
        return artifact.manifest.architecture is not None


def reload(path: Path, work: Workload) -> nn.Module:
    """The model of an artifact; a copy of the dense one takes it where it cannot be built."""
    return load(path, None if is_described(path) else copy.deepcopy(work.model)).eval()


def compiled(model: nn.Module, work: Workload, precision: str) -> nn.Module:
    """The model as it would be run."""
    fast = compile_model(model, tokens=work.tokens, precision=precision, example=work.example)
    if any(isinstance(module, TokenPrunedEncoder) for module in fast.modules()):
        run_packed(fast)
    return fast


def tensor_bytes(path: Path) -> int:
    """Bytes of the tensor files of an artifact."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
