# SPDX-License-Identifier: Apache-2.0
"""A short training run that wins back what pruning cost: masks are held, the best state is kept.

The model is trained in eval mode: without dropout, and with the running statistics it has, it can
match a teacher exactly. Compact layers hold their masks by construction, masked ones in forward.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.train.recovery.schedule import Schedule

BatchType = TypeVar("BatchType")
LossParts = torch.Tensor | tuple[torch.Tensor, Mapping[str, float]]
Objective = Callable[[nn.Module, BatchType], LossParts]
Epoch = Callable[[torch.Generator], Iterable[BatchType]]
_MAX_BAD_STEPS = 3


@dataclass(frozen=True)
class Check:
    """The model at one moment.

    Attributes:
        step: optimizer steps taken.
        minutes: by the clock of the run, time of `watch` left out.
        cpu_minutes: of all threads, the same left out.
        loss: mean of the steps since the last check; None at the start.
        parts: the same of the parts that the objective names.
        validation: what `validate` said, lower is better; None without it.
        score: what `watch` said; None without it.
    """

    step: int
    minutes: float
    cpu_minutes: float
    loss: float | None
    parts: dict[str, float]
    validation: float | None
    score: float | None

    def __str__(self) -> str:
        figures = {"loss": self.loss, "held-out": self.validation, "score": self.score}
        known = [f"{name} {value:.4g}" for name, value in figures.items() if value is not None]
        return ", ".join([f"step {self.step}", f"{self.minutes:.1f} min", *known])


@dataclass(frozen=True)
class Recovery:
    """What a run did. `best` is the check whose state the model has now."""

    checks: list[Check]
    best: Check
    steps: int
    skipped: int


@dataclass
class _Meter:
    """Means of the losses since the last check."""

    total: float = 0.0
    count: int = 0
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, loss: float, parts: Mapping[str, float]) -> None:
        self.total += loss
        self.count += 1
        for name, value in parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + value

    def take(self) -> tuple[float | None, dict[str, float]]:
        if not self.count:
            return None, {}
        means = {name: value / self.count for name, value in self.parts.items()}
        loss = self.total / self.count
        self.total, self.count, self.parts = 0.0, 0, {}
        return loss, means


class _Stopwatch:
    """Seconds by a clock and of the CPU; what is measured with `apart` is left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clocks = (clock, time.process_time)
        self._starts = [clock() for clock in self._clocks]

    def read(self) -> tuple[float, float]:
        wall, cpu = (
            clock() - start for clock, start in zip(self._clocks, self._starts, strict=True)
        )
        return wall, cpu

    def apart(self, measure: Callable[[nn.Module], float], model: nn.Module) -> float:
        before = self.read()
        value = float(measure(model))
        after = self.read()
        self._starts = [s + b - a for s, a, b in zip(self._starts, before, after, strict=True)]
        return value


def recover(
    model: nn.Module,
    objective: Objective[BatchType],
    epoch: Epoch[BatchType],
    schedule: Schedule,
    *,
    validate: Callable[[nn.Module], float] | None = None,
    watch: Callable[[nn.Module], float] | None = None,
    on_check: Callable[[Check], None] = lambda check: None,
    clock: Callable[[], float] = time.monotonic,
) -> Recovery:
    """Train the parameters of `model` that take gradients, with AdamW, in place.

    With a limit in steps the result depends on model, batches and seed only, to the last bit, for
    one machine and number of threads. An error leaves the state that was best so far.

    Args:
        model: usually compact, see `gossamer.compact`.
        objective: loss of (model, batch), or the loss and its named parts.
        epoch: the batches of one epoch, in an order drawn from the generator.
        schedule: steps, minutes, rates, checks, seed.
        validate: lower is better, looked at in every check: the best state is kept. Without it the
            last one is.
        watch: a score for the curve; it decides nothing and its time does not count.
        on_check: called after each check.
        clock: seconds; for limits that do not depend on other work, time.process_time.
    """
    run = _Run(model, objective, schedule, validate, watch, on_check, _Stopwatch(clock))
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        run.train(epoch)
    finally:
        run.restore_best()
        for module, training in modes.items():
            module.training = training
    return run.result()


class _Run(Generic[BatchType]):
    def __init__(
        self,
        model: nn.Module,
        objective: Objective[BatchType],
        schedule: Schedule,
        validate: Callable[[nn.Module], float] | None,
        watch: Callable[[nn.Module], float] | None,
        on_check: Callable[[Check], None],
        watch_time: _Stopwatch,
    ) -> None:
        self._model, self._objective, self._schedule = model, objective, schedule
        self._validate, self._watch, self._on_check = validate, watch, on_check
        self._time = watch_time
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._trained:
            raise InputError("recovery: no parameter of the model takes gradients.")
        self._optimizer = torch.optim.AdamW(
            self._trained.values(), lr=schedule.rate, weight_decay=schedule.weight_decay
        )
        self._best_state: dict[str, torch.Tensor] = {}
        self._best: Check | None = None
        self._checks: list[Check] = []
        self._meter = _Meter()
        self._step = self._bad_in_a_row = self._skipped = 0

    def train(self, epoch: Epoch[BatchType]) -> None:
        schedule = self._schedule
        self._check()
        for batch in _forever(epoch, torch.Generator().manual_seed(schedule.seed)):
            progress = schedule.progress(self._step, self._time.read()[0])
            if progress * schedule.checks >= len(self._checks):
                self._check()
                progress = schedule.progress(self._step, self._time.read()[0])
            if progress >= 1.0:
                break
            self._one_step(batch, schedule.rate_at(progress))
        if self._checks[-1].step != self._step:
            self._check()

    def _one_step(self, batch: BatchType, rate: float) -> None:
        with torch.enable_grad():
            found = self._objective(self._model, batch)
            loss, parts = found if isinstance(found, tuple) else (found, {})
            torch.autograd.backward(loss)
        grads = [p.grad for p in self._trained.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        if bool(norm.isfinite()):
            nn.utils.clip_grads_with_norm_(self._trained.values(), self._schedule.clip, norm)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
            self._bad_in_a_row = 0
            self._meter.add(float(loss.detach()), parts)
        else:
            self._skip(float(loss.detach()))
        self._optimizer.zero_grad()
        self._step += 1

    def _skip(self, loss: float) -> None:
        """A step without finite gradients changes nothing; three in a row end the run."""
        self._skipped += 1
        self._bad_in_a_row += 1
        if self._bad_in_a_row < _MAX_BAD_STEPS:
            return
        grads = {n: p.grad for n, p in self._trained.items() if p.grad is not None}
        where = next((n for n, grad in grads.items() if not grad.isfinite().all()), "their norm")
        raise InputError(
            f"recovery: {_MAX_BAD_STEPS} steps in a row had gradients that are not finite (first in"
            f" {where}, loss {loss:g}, step {self._step}). Lower the rate, or look at the data."
        )

    def _check(self) -> None:
        validation = None if self._validate is None else float(self._validate(self._model))
        score = None if self._watch is None else self._time.apart(self._watch, self._model)
        seconds, cpu_seconds = self._time.read()
        loss, parts = self._meter.take()
        check = Check(self._step, seconds / 60, cpu_seconds / 60, loss, parts, validation, score)
        self._checks.append(check)
        if self._is_best(check):
            self._best = check
            self._best_state = {n: p.detach().clone() for n, p in self._trained.items()}
        self._on_check(check)

    def _is_best(self, check: Check) -> bool:
        best = None if self._best is None else self._best.validation
        return best is None or check.validation is None or check.validation < best

    @torch.no_grad()
    def restore_best(self) -> None:
        for name, value in self._best_state.items():
            self._trained[name].copy_(value)
        for parameter in self._trained.values():
            parameter.grad = None

    def result(self) -> Recovery:
        if self._best is None:
            raise InputError("recovery: there was no batch to train on.")
        return Recovery(self._checks, self._best, self._step, self._skipped)


def _forever(epoch: Epoch[BatchType], generator: torch.Generator) -> Iterator[BatchType]:
    while True:
        is_empty = True
        for batch in epoch(generator):
            is_empty = False
            yield batch
        if is_empty:
            raise InputError("recovery: an epoch holds no batch. Give data to train on.")
