# SPDX-License-Identifier: Apache-2.0
"""One `recover` stage of a recipe: the pruned model learns from the dense one, masks held."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import RecipeError
from gossamer.nn.batch import Answered
from gossamer.pruning.calibration.flow import kept_flags
from gossamer.pruning.gradients.losses import default_loss, next_token_loss
from gossamer.pruning.targets import match
from gossamer.recipes.stages import Recover
from gossamer.runs.stages.base import StageInput, StageOutcome, same_fields
from gossamer.runs.stages.recover_data import RecoverySamples, SortedBatches, samples_of_batches
from gossamer.training.loop import Loop, Surroundings
from gossamer.training.recovery import HELD_OUT, RecoverySchedule, compact_form, fake_int8, recover
from gossamer.training.recovery.distillation import (
    DistillationObjective,
    TaskLoss,
    Teacher,
    Terms,
    check_apart,
)

# Batches that choose the scales of int8 activations.
_CALIBRATED_ON = 8


@dataclass(frozen=True)
class RecoverOutcome(StageOutcome):
    """What the training did; also the loop at its end, and its checks since it was resumed."""

    loop: Loop = field(kw_only=True)
    checks: list[dict[str, Any]] = field(kw_only=True)


def run_recover_stage(
    model: nn.Module,
    step: Recover,
    given: StageInput,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> RecoverOutcome:
    """Train `model` in place; layers keep their form (masked or compact) and their masks.

    Args:
        model: pruned.
        step: the stage.
        given: its data, the teacher (which is frozen), a loss where labels are looked at, and where
            the run is kept.
        clock: of its minutes.
    """
    teacher, watch = given.needed_teacher(), given.watch
    check_apart(teacher, model)
    samples, size = samples_for(given, step.batch, "a recover stage")
    train, held = samples.split(step.holdout, step.seed)
    objective = DistillationObjective(
        Teacher(teacher),
        Terms(**same_fields(step, Terms)),
        task=_task(given, teacher, held) if step.hardness else None,
        hardness=step.hardness,
    )

    def validate(net: nn.Module) -> float:
        with torch.no_grad():
            losses = [float(objective(net, batch)[0]) for batch in held.in_order(size)]
        return sum(losses) / len(losses)

    checks = _Checks(given.say)
    with (
        trainable(model, step.freeze, "recover.freeze"),
        compact_form(model, train.mean_tokens(size)),
    ):
        shown = list(held.in_order(size))
        calls = [batch.run for batch in shown[:: max(1, len(shown) // _CALIBRATED_ON)]]
        with fake_int8(model, step.scales, calibrate=calls) if step.quantise else nullcontext():
            checkpoint, around = None, Surroundings()
            if given.kept is not None:
                checkpoint, around = given.kept.opened(step.checkpoint, given.say)
            loop = recover(
                model,
                objective,
                SortedBatches(train, size, step.seed),
                RecoverySchedule(
                    **same_fields(step, RecoverySchedule),
                    checkpoint_every=step.checkpoint.every,
                    on_full_disk=step.checkpoint.on_full_disk,
                ),
                validate=validate,
                around=replace(
                    around,
                    watch=None if watch is None else lambda net: {"score": watch(net)},
                    sinks=(*around.sinks, checks),
                    progress=given.tick,
                    clock=clock,
                ),
                checkpoint=checkpoint,
            )
    return RecoverOutcome(_notes(step, loop, len(train.numbers)), loop=loop, checks=checks.seen)


@dataclass
class _Checks:
    """Takes evaluations out of the records of a run, and tells them."""

    say: Callable[[str], None]
    seen: list[dict[str, Any]] = field(default_factory=list)

    def write(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "evaluation":
            self.seen.append(dict(record))
            names = {"held-out loss": HELD_OUT, "score": "score"}
            known = [f"{text} {record[name]:.4g}" for text, name in names.items() if name in record]
            self.say(", ".join([f"step {record['step']}, {record['minutes']:.1f} min", *known]))

    def close(self) -> None:
        """Nothing is open."""


def samples_for(given: StageInput, batch: int, what: str) -> tuple[RecoverySamples, int]:
    """What a stage trains on, and how many make a step: `batch`, or a user's batch as it is."""
    if given.samples is not None:
        return given.samples, batch
    return samples_of_batches(given.needed_batches(what)), 1


def _task(given: StageInput, teacher: nn.Module, samples: RecoverySamples) -> TaskLoss:
    """The user's loss, or next tokens; the losses that pruning makes up are no task."""
    loss = given.loss
    if loss is None:
        loss = default_loss(teacher, next(samples.in_order(1)))
        if loss is not next_token_loss:
            raise RecipeError(
                "recover.hardness: mixes in the loss of a task, and there is none: give pairs with"
                " scores, a causal language model, StageInput(loss=...), or hardness: 0."
            )
    return lambda outputs, batch: loss(Answered(outputs), batch)


@contextmanager
def trainable(model: nn.Module, freeze: tuple[str, ...] | None, where: str) -> Iterator[None]:
    """Parameters take gradients inside unless frozen; afterwards as before."""
    modules = {name: module for name, module in model.named_modules() if name}
    with kept_flags(model):
        if not any(parameter.requires_grad for parameter in model.parameters()):
            # Nobody chose: a model that was loaded for inference.
            model.requires_grad_(True)
        for rule in freeze or ():
            for name in match(rule, modules, where):
                modules[name].requires_grad_(False)
        yield


def _notes(step: Recover, loop: Loop, num_samples: int) -> list[str]:
    notes = [f"recovered in {loop.step} steps on {num_samples} samples."]
    best = loop.best
    if best is not None:
        notes[0] = (
            f"{notes[0][:-1]}; loss on held-out samples {best.first:.4g} -> {best.value:.4g}"
            f" (step {best.step})."
        )
        if best.step == 0:
            notes.append(
                "recover: no step made the model better; it is as it was before the stage."
            )
    if loop.skipped:
        notes.append(f"recover: {loop.skipped} batches had no finite gradients and were skipped.")
    if step.quantise:
        notes.append(
            "recover: trained for int8 kernels, gossamer.compile(model, precision='int8'); files"
            " and fp32 kernels hold the weights as they are before rounding."
        )
    if step.scales != "token":
        notes.append(
            f"recover: {step.scales} scales of activations end with the stage; gossamer.compile"
            " measures every token, which scales: token trains for."
        )
    return notes
