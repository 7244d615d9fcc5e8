# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, schedule, compaction, evaluation, checkpoints.

A run that is killed and resumed takes the same steps to the bit: the batch is a function of its
number, the learning rate of the step, and everything else is in the checkpoint. Batches with NaN or
Inf gradients are skipped and do not count as steps, so schedules stay in time.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from gossamer.data import Batches
from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.training.checkpoint import Checkpoint, Snapshot
from gossamer.training.checkpoint.random_state import (
    capture_random,
    restore_random,
    undisturbed_random,
)
from gossamer.training.checkpoint.restoring import (
    COUNTED,
    layer_forms,
    read_counters,
    restore_forms,
    restore_model,
    restore_optimizer,
)
from gossamer.training.growth import GrowthStep, GrowthWatch, grow
from gossamer.training.loop.endings import Interrupts, TrainingDiverged, TrainingStopped
from gossamer.training.loop.evaluation import CompactionWatch, EvaluationWatch
from gossamer.training.loop.processes import Agreement, Processes, loss_of, recomputing
from gossamer.training.loop.run import (
    Control,
    NoControl,
    Objective,
    ScheduleEvent,
    Surroundings,
    TrainingRun,
)
from gossamer.training.loop.settings import LoopSettings
from gossamer.training.loop.slimming import restore_slim, slim_state
from gossamer.training.optim import SmallStateOptimizer
from gossamer.training.optim.scaling import LossScaler

MAX_SKIPPED_IN_A_ROW = 3
_ALONE = Surroundings()
LaterControl = Callable[[nn.Module, torch.optim.Optimizer, int], Control]


class Loop(TrainingRun):
    """One training run.

    Args:
        model: trained in place.
        optimizer: holds its parameters; its learning rates are the peaks of `settings.rate`.
        objective: the loss of a batch.
        batches: the data, by number.
        settings: how the loop runs.
        control: the sparsity schedule; None holds the masks that are there. For a model that grows:
            what makes it, once the model has its last size, of it, its optimizer and the steps
            taken.
        around: what the run reports to, and where it is kept.
        processes: who carries out the steps; None: this process alone.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        batches: Batches,
        settings: LoopSettings,
        *,
        control: Control | LaterControl | None = None,
        around: Surroundings = _ALONE,
        processes: Processes | None = None,
    ) -> None:
        if settings.grow and control is not None and not callable(control):
            raise InputError(
                "grow: a schedule would move the masks of a model that grows. Give a function that"
                " makes the schedule, to be called after the last growth."
            )
        self._later = control if callable(control) else None
        control = NoControl(model) if control is None or callable(control) else control
        growth = GrowthWatch(settings.grow, settings.step_tokens)
        super().__init__(model, optimizer, objective, batches, settings, control, around, growth)
        if settings.precision == "fp16":
            self.scaler = LossScaler()
        self.processes = Processes() if processes is None else processes
        self.processes.run = self
        self.in_a_row = 0
        self.rate_shift = 0
        self.compaction = CompactionWatch(self.processes)
        self.evaluation = EvaluationWatch(self.processes)
        self.best = self.evaluation.best
        self._writer = around.writer
        # The objective, if it has a state: a teacher that remembers, a loss with parameters.
        self._memory: Any = objective if hasattr(objective, "load_state_dict") else None
        self._last_saved = -1
        self._was_settled = False
        self._traffic: dict[str, int] = {}
        self._losses: deque[float] = deque(maxlen=settings.log_every)
        self._recent_ms: deque[float] = deque(maxlen=20)
        self._recomputing = ExitStack()

    @property
    def quality(self) -> dict[str, float]:
        """What the last evaluation measured."""
        return self.evaluation.quality

    def state(self) -> dict[str, Any] | None:
        """Everything that decides the steps to come; None where no files are written."""
        states = self.processes.states()
        if states is None:
            return None
        model, optimizer, control = states
        length = next((s.length for s in self.around.sinks if hasattr(s, "length")), 0)
        return {
            "counters": {
                **{name: getattr(self, name) for name in COUNTED},
                "losses": list(self._losses),
                "seconds": self.evaluation.time.read(),
                "compacted": self.compaction.is_done,
                "metrics_bytes": length,
            },
            "forms": layer_forms(self.model),
            "model": model,
            "optimizer": optimizer,
            "control": control,
            "best": None if self.best is None else self.best.state_dict(),
            "objective": None if self._memory is None else self._memory.state_dict(),
            "random": capture_random(),
            **({} if self.scaler is None else {"loss_scale": self.scaler.state_dict()}),
            **({"slim": cut} if (cut := slim_state(self, is_done=self.compaction.is_done)) else {}),
            **({"growth": self.growth.state_dict()} if self.growth.steps else {}),
        }

    def restore(self, checkpoint: Checkpoint, *, keep_settings: bool = False) -> None:
        """Go on from a checkpoint; with `keep_settings` learning rates stay those of now.

        Order: forms of layers, weights, moments, schedule; generators last, because building a
        model draws from them.
        """
        state = checkpoint.state
        try:
            counters = read_counters(state)
            if self.growth.steps:
                self.growth.load_state_dict(state["growth"])
                # The same shapes in the same groups; numbers follow.
                for wanted in self.growth.steps[: len(self.growth.done)]:
                    self._become_larger(wanted)
                self._take_control()
            if "slim" in state:
                restore_slim(self, state["slim"])
            forms = state["forms"]
            # Or compact from the start; then their modes are those of the checkpoint.
            compact = counters["compacted"] or any(f["form"] == "compact" for f in forms.values())
            if compact:
                # Masks first: the schedule knows its layers as masked ones and follows from there.
                self.control.load_state_dict(state["control"])
                restore_forms(self.model, self.optimizer, forms, state["model"])
            restore_model(self.model, state["model"])
            restore_optimizer(self.optimizer, state["optimizer"], keep_settings=keep_settings)
            if not compact:
                self.control.load_state_dict(state["control"])
            if self.best is not None:
                self.best.load_state_dict(state["best"])
            if self._memory is not None:
                self._memory.load_state_dict(state["objective"])
            if self.scaler is not None and (not keep_settings or "loss_scale" in state):
                self.scaler.load_state_dict(state["loss_scale"])
            restore_random(state["random"])
        except (KeyError, TypeError) as error:
            raise ArtifactError(
                f"checkpoint: {error} is missing or not what belongs there."
            ) from error
        for name in COUNTED:
            setattr(self, name, counters[name])
        self._losses.extend(counters["losses"])
        self.compaction.is_done = counters["compacted"]
        self.evaluation.time.seconds = counters["seconds"]
        self._last_saved = self.step

    def train(self) -> None:
        """Take all steps that are left, then evaluate and save.

        Raises:
            TrainingStopped: after SIGINT or SIGTERM, once the state is saved.
            TrainingDiverged: gradients were not finite three times in a row.
        """
        watch = self.evaluation
        self.model.train(self.settings.in_train_mode)
        watch.time.start()
        try:
            with Interrupts() as interrupts, self._recomputing:
                self._recomputing.enter_context(recomputing(self.model, self.settings.recompute))
                self._grow_if_due()
                self._was_settled = self.is_settled
                self._compact_if_settled()
                self.growth.look_at(self.model)
                self.processes.arrange()
                if self.best is not None and self.best.step < 0:
                    self.evaluate()
                    # Modes of layers were measured: as after compaction.
                    self.save()
                self._take_steps(interrupts)
                if watch.last_step != self.step:
                    self.evaluate()
                self.save()
                if self._writer is not None:
                    self._writer.wait()
                self.processes.dissolve()
        finally:
            if self.best is not None:
                self.best.restore()

    def _take_steps(self, interrupts: Interrupts) -> None:
        settings, watch = self.settings, self.evaluation
        every = settings.evaluate_every or settings.steps + 1
        position = watch.position()
        while position < settings.steps:
            before, is_taken = position, self._one_step(position, interrupts.number or 0)
            position = watch.position()
            if not is_taken:
                continue
            if before // every < position // every and position < settings.steps:
                self.evaluate()
            self._settle()
            if settings.checkpoint_every and self.step % settings.checkpoint_every == 0:
                self.save()
            stop = self.processes.asked_to_stop(interrupts.number or 0)
            if stop:
                self._stop(stop)

    def _settle(self) -> None:
        """Once the model grew or its masks are final: other layers, and another place for them."""
        if not self._grow_if_due() and (self._was_settled or not self.is_settled):
            return
        self._was_settled = self.is_settled
        self.processes.dissolve()
        self._compact_if_settled()
        self.growth.look_at(self.model)
        self.processes.arrange()

    def _grow_if_due(self) -> bool:
        """Make the model larger, as often as that is due; whether it was."""
        before_all = self.model
        while (wanted := self.growth.due(self.step)) is not None:
            self.processes.dissolve()
            self._recomputing.close()
            before = self._loss_of_next()
            counts = [sum(p.numel() for p in self.parameters)]
            self._become_larger(wanted)
            counts.append(sum(p.numel() for p in self.parameters))
            after = self._loss_of_next()
            self.growth.grown(self.step)
            self._take_control()
            if wanted.rho is not None:
                self.rate_shift = round(self.step / wanted.rho) - self.step
            self._recomputing.enter_context(recomputing(self.model, self.settings.recompute))
            self.compaction.is_moot = False
            self._log(
                "growth",
                loss_before=before,
                loss_after=after,
                parameters_before=counts[0],
                parameters_after=counts[1],
            )
        return self.model is not before_all

    def _become_larger(self, wanted: GrowthStep) -> None:
        self.model = grow(self.model, self.optimizer, **vars(wanted.growth))
        self.control = NoControl(self.model)
        self._follow_masks()

    def _take_control(self) -> None:
        """Let the schedule begin, once the model has its last size."""
        if self._later is None or self.growth.is_pending:
            return
        self.control = self._later(self.model, self.optimizer, self.growth.done[-1])
        self._follow_masks()

    def _follow_masks(self) -> None:
        if isinstance(self.optimizer, SmallStateOptimizer):
            self.optimizer.follow_masks(self.model)

    @torch.no_grad()
    def _loss_of_next(self) -> float:
        """The loss of the next batch without dropout: what a growth leaves as it is."""
        self.model.eval()
        with undisturbed_random():
            batch = self.batches[self.taken]
            loss, _ = loss_of(self.objective, self.model, batch)
        self.model.train(self.settings.in_train_mode)
        return float(loss)

    def save(self) -> None:
        """Write a checkpoint of now, unless that was tried already."""
        if self._writer is None or self._last_saved == self.step:
            return
        self._last_saved = self.step
        began = time.perf_counter()
        state = self.state()
        if state is None:
            self.processes.saved()
            return
        try:
            snapshot = Snapshot.of(self.step, self.around.run, state, copy=self._writer.copies)
            self._writer.submit(snapshot)
        except ResourceError as error:
            if self.settings.on_full_disk == "stop":
                raise
            self._log("checkpoint-failed", error=str(error))
            return
        finally:
            self.processes.saved()
        stall_ms = round(1000 * (time.perf_counter() - began), 3)
        self._log("checkpoint", bytes=snapshot.num_bytes, stall_ms=stall_ms)

    def evaluate(self) -> None:
        """Measure the quality, and log it."""
        record = self.processes.evaluated(self.evaluation.measure)
        if record is not None:
            compute = {"flops": self.growth.flops} if self.growth.steps else {}
            self._log("evaluation", sparsity=self.processes.sparsity(), **record, **compute)
            if "eval_loss" in record:
                self.growth.monitor.add(self.step + self.rate_shift, record["eval_loss"])

    def close(self) -> None:
        """Nothing is logged any more; files are closed, and a checkpoint under way is finished."""
        for sink in self.around.sinks:
            sink.close()
        if self._writer is not None:
            self._writer.wait()

    def _one_step(self, position: float, signal: int) -> bool:
        """One optimizer step; False if the batch was skipped."""
        began = time.perf_counter()
        warm = self.growth.rate(self.step)
        rate = self.settings.rate.apply(self.optimizer, position + self.rate_shift, warm)
        self.optimizer.zero_grad()
        loss, norm, numbers = self._gradients(signal)
        if not torch.tensor([loss, norm]).isfinite().all():
            self._skip(loss)
            return False
        if self.scaler is not None:
            self.scaler.follow(True)
        clip, grads = self.settings.clip, self.gradients
        if clip is not None and norm > clip and grads:
            torch._foreach_mul_(grads, clip / norm)
        self.optimizer.step()
        self.in_a_row = 0
        events = self.control.step()
        self.step += 1
        self.growth.count_step()
        elapsed = 1000 * (time.perf_counter() - began)
        self._recent_ms.append(elapsed)
        self._losses.append(loss)
        for record in self.compaction.after_step(elapsed):
            self._log("compaction-effect", **record)
        self._follow_events(events)
        if self.step % self.settings.log_every == 0 or self.step == self.settings.steps:
            self._log(
                "step",
                loss=sum(self._losses) / len(self._losses),
                lr=rate,
                gradient_norm=norm,
                sparsity=self.processes.sparsity(),
                ms=round(sum(self._recent_ms) / len(self._recent_ms), 3),
                skipped=self.skipped,
                **({} if self.scaler is None else {"loss_scale": self.scaler.factor}),
                **numbers,
            )
        traffic = self.processes.traffic()
        if traffic != self._traffic:
            self._traffic = traffic
            self._log("traffic", **traffic)
        if self.around.progress is not None:
            self.around.progress(self.step, self.settings.steps)
        return True

    def _gradients(self, signal: int) -> Agreement:
        """Gradients of all batches of a step, their mean loss, and the objective's numbers."""
        count, total = self.settings.accumulate, 0.0
        numbers: dict[str, float] = {}
        for index in range(count):
            batch = self.batches[self.taken]
            self.taken += 1
            loss, found = self.processes.backward(batch, is_last=index == count - 1)
            total += loss
            for name, value in found.items():
                numbers[name] = numbers.get(name, 0.0) + value
        penalty = self.control.penalty()
        if penalty is not None:
            torch.autograd.backward(penalty if self.scaler is None else self.scaler.scale(penalty))
        if self.scaler is not None:
            self.scaler.unscale(self.optimizer)
        elif isinstance(self.optimizer, SmallStateOptimizer):
            # Norms and clipping are of what the step takes.
            self.optimizer.raise_gradients()
        return self.processes.agree(total, numbers, signal)

    def _skip(self, loss: float) -> None:
        """Leave weights and optimizer state as they are; stop if it happens again and again."""
        layers = self.processes.not_finite() or ["the loss, or the norm of all gradients"]
        self.optimizer.zero_grad()
        self.skipped += 1
        scaled = {} if self.scaler is None else {"loss_scale": self.scaler.factor}
        self._log("skipped", batch=self.taken - 1, loss=loss, layers=layers[:8], **scaled)
        if self.scaler is not None:
            self.scaler.follow(False)
            if math.isfinite(loss):
                # A smaller scale may do; no scale mends a loss.
                return
        self.in_a_row += 1
        if self.in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingDiverged(
                f"step {self.step}: gradients were NaN or Inf {self.in_a_row} times in a row, in"
                f" {', '.join(layers[:3])}. Weights and optimizer state are those of the last good"
                " step. Lower the learning rate, clip gradients, or check the data."
            )

    def _compact_if_settled(self) -> None:
        watch = self.compaction
        if watch.is_done or watch.is_moot or not self.is_settled:
            return
        record = watch.compact()
        if record is not None:
            self._log("compaction", **record)
            # Modes are measured: they are written down before a step is taken with them.
            self._last_saved = -1
            self.save()

    def _follow_events(self, events: Sequence[ScheduleEvent]) -> None:
        if events:
            self.processes.changed()
        if events and self.growth.steps:
            self.growth.look_at(self.model)
        for event in events:
            self._log("schedule", event=event.kind, sparsity=event.sparsity, **event.details)
            # Rewinding says whose learning rate comes next.
            if "lr_step" in event.details:
                self.rate_shift = int(event.details["lr_step"]) - self.step

    def _stop(self, number: int) -> None:
        self.save()
        if self._writer is not None:
            self._writer.wait()
        saved = "its state is saved" if self._writer is not None else "nothing was saved"
        raise TrainingStopped(f"stopped after step {self.step}; {saved}.", number)

    def _log(self, kind: str, **content: Any) -> None:
        record = {"kind": kind, "step": self.step, **content}
        for sink in self.around.sinks:
            sink.write(record)
