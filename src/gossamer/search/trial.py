# SPDX-License-Identifier: Apache-2.0
"""One candidate made and measured: quality, milliseconds and bytes of the same artifact."""

import copy
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gossamer.io import load, save
from gossamer.io.artifact import open_artifact
from gossamer.nn.tokens import TokenPrunedEncoder
from gossamer.ops.timing import duel
from gossamer.pruning.calibration.journal import DiskJournal
from gossamer.recipes.digest import recipe_digest
from gossamer.running.encoder import run_packed
from gossamer.running.layers import compile as compile_model
from gossamer.runs import KeptRun, prune
from gossamer.runs.sources import Source, tensor_bytes
from gossamer.runs.stages import StageInput
from gossamer.search.budget import NEVER, Deadline, OutOfTime, Stopped
from gossamer.search.candidates import DENSE, Candidate, has_all_weights, is_trained_dense
from gossamer.search.records import read_record, write_record
from gossamer.search.workloads import Workload
from gossamer.training.run_files import RunFolder

_RESULT = "trial.json"
_STOPPED = "stopped.json"
_JOURNAL = "journal"
_RUN = "run"
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
        ms: of the timed call: that of the dense model in torch, over `speedup`.
        speedup: over the dense model in torch, measured in turn with it.
        size: bytes of its tensor files.
        doubt: what else a busy machine did while it was timed; empty if it was quiet.
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
    doubt: str = ""

    @property
    def name(self) -> str:
        """Candidate and precision; the dense model in int8 or bf16 says it once."""
        name = self.candidate
        if is_trained_dense(name):
            name = name.replace("-", " ", 1)
        elif has_all_weights(name) and name != DENSE:
            return name.replace("-", " ")
        return f"{name} {self.precision}"

    @property
    def is_dense(self) -> bool:
        """Whether no weight was taken out."""
        return has_all_weights(self.candidate) or not self.is_ours


@dataclass(frozen=True)
class Trial:
    """What became of a candidate; `making` is the part of its seconds before it was measured."""

    candidate: str
    seconds: float
    points: tuple[Point, ...]
    steps: int = 0
    making: float = 0.0


@dataclass
class Workshop:
    """Makes and measures candidates in a folder; what is done there already is read back.

    Attributes:
        workload: the search.
        folder: one artifact per candidate, with its measurements beside it.
        dense_quality: on the data that choices are made by.
        key: what the search is, for runs that go on.
        beside: tokenizer and the like, saved with every artifact.
        say: gets a line whenever training has looked at the model.
        torch_ms: of the dense model in torch, which all times are told beside; None until known.
    """

    workload: Workload
    folder: Path
    dense_quality: float
    key: dict[str, str]
    beside: dict[str, bytes] | None = None
    say: Callable[[str], None] = lambda text: None
    torch_ms: float | None = None

    def path(self, candidate: str) -> Path:
        """Its artifact."""
        return self.folder / candidate

    def knows(self, candidate: Candidate) -> bool:
        """Whether an earlier run has measured it."""
        return self._beside(candidate, _RESULT).exists()

    def stopped(self, candidate: Candidate) -> Stopped:
        """What earlier runs did of it before its time was up."""
        return read_stopped(self._beside(candidate, _STOPPED))

    def try_out(self, candidate: Candidate, deadline: Deadline | None = None) -> Trial:
        """Make it unless an earlier run did, and measure it in every precision.

        Raises:
            OutOfTime: by the deadline; the next call goes on from there.
        """
        done = self._beside(candidate, _RESULT)
        if done.exists():
            return read_record(done, Trial)
        before = self.stopped(candidate).seconds
        deadline = deadline or Deadline()
        path = self.path(candidate.name)
        if not path.exists():
            try:
                self._make(candidate, path, deadline)
            except OutOfTime as stop:
                write_stopped(self._beside(candidate, _STOPPED), stop, before, deadline.seconds)
                raise
        making = before + deadline.elapsed
        points = tuple(
            self._measure(candidate, path, precision) for precision in candidate.precisions
        )
        seconds = before + deadline.elapsed
        trial = Trial(candidate.name, seconds, points, candidate.steps, making)
        write_record(done, trial)
        # Checkpoints and solved layers are of no use once the artifact is there.
        for folder in (_JOURNAL, _RUN):
            shutil.rmtree(self._beside(candidate, folder), ignore_errors=True)
        self._beside(candidate, _STOPPED).unlink(missing_ok=True)
        return trial

    def _beside(self, candidate: Candidate, what: str) -> Path:
        return self.folder / f"{candidate.name}.{what}"

    def _make(self, candidate: Candidate, path: Path, deadline: Deadline) -> None:
        work, recipe, after = self.workload, candidate.recipe, candidate.after
        model = copy.deepcopy(work.model) if after is None else reload(self.path(after), work)
        if recipe is None:
            save(model, path, beside=self.beside)
            return
        run = RunFolder(path)
        key = {**self.key, "candidate": candidate.name, "recipe": recipe_digest(recipe)}
        # Stages have seeds of their own; what has none must not depend on what ran before.
        with run.opened(resume=True), torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            given = StageInput(
                loss=work.loss,
                journal=DiskJournal(self._beside(candidate, _JOURNAL), key),
                teacher=copy.deepcopy(work.model),
                samples=work.samples() if candidate.steps or recipe.counts_ids else None,
                kept=KeptRun(run, key) if candidate.steps else None,
                say=lambda text: self.say(f"{candidate.name}: {text}"),
                progress=lambda done: deadline.tick(done.index, done.total),
                tick=deadline.tick,
            )
            source = Source(model, candidate.name, None, self.beside or {})
            batches = work.batches() if recipe.needs_data else None
            prune(source, recipe, data=batches, out=path, given=given, timed=False)

    def _measure(self, candidate: Candidate, path: Path, precision: str) -> Point:
        work = self.workload
        model = compiled(reload(path, work), work, precision)
        quality = self.dense_quality
        with torch.inference_mode():
            # The dense model itself has been measured already.
            if candidate.recipe is not None:
                quality = work.choosing.measure(model)
            calls = work.timed.call(work.model), work.timed.call(model)
            times = duel(*calls, budget_seconds=_TIMED_SECONDS)
        lost = work.choosing.lost(self.dense_quality, quality)
        # One scale for all: minutes lie between two measurements, only turns compare.
        ms = times.second_us / 1e3 if self.torch_ms is None else self.torch_ms / times.ratio
        return Point(
            candidate.name, precision, quality, lost if math.isfinite(lost) else math.inf,
            ms, times.ratio, tensor_bytes(path), doubt=times.doubt,
        )  # fmt: skip


def read_stopped(path: Path) -> Stopped:
    """What was written there when time was up."""
    return read_record(path, Stopped) if path.exists() else NEVER


def write_stopped(path: Path, stop: OutOfTime, before: float, allowed: float) -> None:
    """Take note of it; `before` are the seconds of earlier runs, `allowed` those of this one."""
    write_record(path, Stopped(before + stop.seconds, stop.needs, before + allowed))


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
