# SPDX-License-Identifier: Apache-2.0
"""What is watched in the middle of a run: numbers beside the minutes they took, the best state.

At the moment at which the masks are final the state shrinks, and the log says by how much.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery.compaction import compact
from gossamer.training.checkpoint.random_state import undisturbed_random
from gossamer.training.loop.processes import Processes
from gossamer.training.loop.settings import LOW_PRECISIONS
from gossamer.training.loop.slimming import check_slim, slim
from gossamer.training.memory import measure
from gossamer.training.modes import choose_modes
from gossamer.training.optim import SmallStateOptimizer
from gossamer.training.samo import check_samo, hold_samo


class Stopwatch:
    """How long a run has taken, through kills and resumes.

    Args:
        clock: for limits that do not depend on other work, time.process_time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = [0.0, 0.0]
        self._clocks = (clock, time.process_time)
        self._last: list[float] | None = None

    def start(self) -> None:
        """Time counts from now on."""
        self._last = [clock() for clock in self._clocks]

    def read(self) -> list[float]:
        """By the clock, and CPU seconds of all threads."""
        if self._last is not None:
            before = self._last
            self.start()
            spent = zip(self.seconds, self._last, before, strict=True)
            self.seconds = [held + (new - old) for held, new, old in spent]
        return self.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside does not count."""
        self.read()
        try:
            yield
        finally:
            self.start()


class BestState:
    """What training moves, as it was at the best evaluation of a run; lower is better.

    Args:
        model: parameters that are trained are kept, and buffers that files hold (statistics of
            batch norms, scales of tables); their names and shapes must stay.
        name: of the number that the evaluations are compared by.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self.first = self.value = math.nan
        self.step = -1
        self._name = name
        # Codes of tables are trained without a gradient of autograd's.
        self._trained: dict[str, torch.Tensor] = {
            n: p
            for n, p in model.named_parameters()
            if p.requires_grad or not p.is_floating_point()
        }
        for path, module in model.named_modules():
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    self._trained[f"{path}.{name}"] = buffer
        self._kept: dict[str, torch.Tensor] = {}

    def look(self, step: int, quality: Mapping[str, float]) -> None:
        """Keep the state of now if no evaluation so far was as good."""
        if self._name not in quality:
            raise InputError(f"keep_best: the evaluation has no number {self._name!r}.")
        value = quality[self._name]
        if not self._kept:
            self.first = value
        if not self._kept or math.isnan(self.value) or value < self.value:
            self.value, self.step = value, step
            self._kept = {name: param.detach().clone() for name, param in self._trained.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the model back to it; nothing happens before the first look."""
        for name, value in self._kept.items():
            self._trained[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"first": self.first, "value": self.value, "step": self.step, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        kept = state["kept"]
        shapes = {name: param.shape for name, param in self._trained.items()}
        if kept and {name: tensor.shape for name, tensor in kept.items()} != shapes:
            raise ArtifactError("checkpoint: its best state is not one of this model.")
        self.first, self.value, self.step = state["first"], state["value"], state["step"]
        self._kept = dict(kept)


class EvaluationWatch:
    """Evaluates, keeps the time of the run, and follows its best state."""

    def __init__(self, processes: Processes) -> None:
        run = processes.run
        self.quality: dict[str, float] = {}
        self.last_step = -1
        name = run.settings.keep_best
        self.best = None if name is None else BestState(run.model, name)
        self.time = Stopwatch(run.around.clock)
        self._run, self._processes = run, processes

    def position(self) -> float:
        """Steps taken, or as many as the minutes that are over stand for, if those are more."""
        step, minutes, steps = self._run.step, self._run.settings.minutes, self._run.settings.steps
        if minutes is None:
            return step
        return max(step, min(steps, steps * self.time.read()[0] / (60 * minutes)))

    def measure(self, model: nn.Module) -> dict[str, Any] | None:
        """The numbers of now, with minutes; generators go on as if nothing had been drawn."""
        around = self._run.around
        if around.evaluate is None and around.watch is None:
            return None
        found: dict[str, float] = {}
        model.eval()
        with undisturbed_random(), torch.no_grad():
            if around.evaluate is not None:
                found.update(self._processes.numbers(around.evaluate, model))
            if around.watch is not None:
                with self.time.paused():
                    found.update(around.watch(model))
        model.train(self._run.settings.in_train_mode)
        self.quality = {name: float(value) for name, value in found.items()}
        self.last_step = self._run.step
        if self.best is not None:
            self.best.look(self.last_step, self.quality)
        wall, cpu = (round(seconds / 60, 4) for seconds in self.time.read())
        return {"minutes": wall, "cpu_minutes": cpu, **self.quality}


_TIMED_STEPS = 10


class CompactionWatch:
    """Compacts the model of a run once, and times the steps before and after."""

    def __init__(self, processes: Processes) -> None:
        self.is_done = False
        self.is_moot = False
        self._processes = processes
        self._before: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._after: list[float] | None = None
        if processes.run.settings.compaction == "samo":
            # Now, not after half of the run.
            check_samo(processes.run.model, processes.run.optimizer)
        if processes.run.settings.compaction == "slim":
            check_slim(processes.run)

    def compact(self) -> dict[str, Any] | None:
        """Compact the model; what changed, or None if there is nothing to do."""
        run = self._processes.run
        settings, model = run.settings, run.model
        if settings.compaction == "off" or not any(sparse_layers(model, "masked")):
            self.is_moot = True
            return None
        if settings.compaction == "slim":
            self.is_done = True
            self._after = []
            return slim(run)
        bytes_before = measure(model, run.optimizer).total_bytes
        result = compact(model, run.optimizer, mode=settings.mode)
        if settings.split_masters:
            self._split_masters()
        if settings.compaction == "samo":
            hold_samo(model, run.optimizer, LOW_PRECISIONS[settings.precision])
        choices = []
        if settings.compaction == "auto":
            choices = choose_modes(model, settings.tokens, example=run.around.example)
        self.is_done = True
        self._after = []
        return {
            "layers": len(result.compacted),
            "left_masked": sorted(result.left_masked),
            "weights": result.num_weights,
            "values": result.num_values,
            "sparsity": self._processes.sparsity(),
            "bytes_before": bytes_before,
            "bytes_after": measure(model, run.optimizer).total_bytes,
            "modes": {choice.layer: choice.mode for choice in choices},
        }

    def after_step(self, elapsed_ms: float) -> Iterator[dict[str, Any]]:
        """Note the time of a step; the comparison, once enough steps after it were timed."""
        if self._after is None:
            self._before.append(elapsed_ms)
            return
        self._after.append(elapsed_ms)
        # The first step after compaction warms up and is unlike the others.
        if len(self._after) == _TIMED_STEPS + 1:
            yield {
                "ms_before": statistics.median(self._before) if self._before else None,
                "ms_after": statistics.median(self._after[1:]),
                "bytes_after": self._processes.state_bytes(),
            }

    def _split_masters(self) -> None:
        run = self._processes.run
        if not isinstance(run.optimizer, SmallStateOptimizer):
            raise InputError(
                f"split_masters: {type(run.optimizer).__name__} has no split masters. Use an"
                " optimizer of gossamer.training.optim."
            )
        layers = [layer for _, layer in sparse_layers(run.model, "compact")]
        run.optimizer.split_masters([layer.values for layer in layers])
        for layer in layers:
            layer.refresh()
