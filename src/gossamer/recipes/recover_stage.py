# SPDX-License-Identifier: Apache-2.0
"""One `recover` stage of a recipe: the pruned model learns from the dense one, masks held."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import RecipeError
from gossamer.prune.batches import Batch
from gossamer.prune.gradient_passes import Loss
from gossamer.prune.losses import default_loss, next_token_loss
from gossamer.prune.rules import match
from gossamer.recipes.prune_stage import StageInput
from gossamer.recipes.recover_data import RecoverySamples, samples_of_batches
from gossamer.recipes.recover_schema import Recover
from gossamer.train.recovery import Batch as AnyBatch
from gossamer.train.recovery import (
    Distillation,
    Recovery,
    Schedule,
    Teacher,
    Terms,
    fake_int8,
    recover,
)
from gossamer.train.recovery.compact_form import compact_form
from gossamer.train.recovery.distillation import TaskLoss
from gossamer.train.recovery.teacher import check_apart

# Batches that choose the scales of int8 activations.
_CALIBRATED_ON = 8


@dataclass(frozen=True)
class RecoverResult:
    """What the training did, and what the user should know."""

    recovery: Recovery
    notes: list[str]


def run_recover_stage(
    model: nn.Module,
    step: Recover,
    given: StageInput,
    teacher: nn.Module,
    *,
    watch: Callable[[nn.Module], float] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RecoverResult:
    """Train `model` in place; layers keep their form (masked or compact) and their masks.

    Args:
        model: pruned.
        step: the stage.
        given: its data, and a loss where labels are looked at.
        teacher: the dense model; it is frozen.
        watch: a score for the curve, see `gossamer.train.recovery.recover`.
        clock: of its minutes.
    """
    check_apart(teacher, model)
    samples, size = _samples(step, given)
    train, held = samples.split(step.holdout, step.seed)
    objective = Distillation(
        Teacher(teacher),
        _terms(step),
        task=_task(_labelled_loss(given, teacher, held)) if step.hardness else None,
        hardness=step.hardness,
    )

    def validate(net: nn.Module) -> float:
        with torch.no_grad():
            losses = [float(objective(net, batch)[0]) for batch in held.in_order(size)]
        return sum(losses) / len(losses)

    with _trainable(model, step.freeze), compact_form(model, train.mean_tokens(size)):
        shown = list(held.in_order(size))
        calls = [batch.run for batch in shown[:: max(1, len(shown) // _CALIBRATED_ON)]]
        quantised = fake_int8(model, step.scales, calibrate=calls)
        with quantised if step.quantise else nullcontext():
            result = recover(
                model,
                objective,
                lambda generator: train.epoch(size, generator),
                _schedule(step),
                validate=validate,
                watch=watch,
                on_check=given.on_check,
                clock=clock,
            )
    return RecoverResult(result, _notes(step, result, len(train.numbers)))


def _samples(step: Recover, given: StageInput) -> tuple[RecoverySamples, int]:
    if given.samples is not None:
        return given.samples, step.batch
    return samples_of_batches(given.needed_batches("a recover stage")), 1


def _terms(step: Recover) -> Terms:
    return Terms(
        logits=step.logits,
        embeddings=step.embeddings,
        similarity=step.similarity,
        hidden=step.hidden,
        temperature=step.temperature,
        distance=step.distance,
    )


def _schedule(step: Recover) -> Schedule:
    return Schedule(
        steps=step.steps,
        minutes=step.minutes,
        rate=step.rate,
        warmup=step.warmup,
        decay=step.decay,
        checks=step.checks,
        seed=step.seed,
    )


def _labelled_loss(given: StageInput, teacher: nn.Module, samples: RecoverySamples) -> Loss:
    """The user's loss, or next tokens; the losses that pruning makes up are no task."""
    if given.loss is not None:
        return given.loss
    first = next(samples.in_order(1))
    if default_loss(teacher, Batch(first.arguments, first.keep)) is not next_token_loss:
        raise RecipeError(
            "recover.hardness: mixes in the loss of a task, and there is none: give pairs with"
            " scores, a causal language model, StageInput(loss=...), or hardness: 0."
        )
    return next_token_loss


class _Answered(nn.Module):
    """A model whose answer is known: losses that call a model cost no second forward."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self._outputs = outputs

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self._outputs


def _task(loss: Loss) -> TaskLoss:
    def task(outputs: Any, batch: AnyBatch) -> torch.Tensor:
        return loss(_Answered(outputs), Batch(batch.arguments, batch.keep, batch.labels))

    return task


@contextmanager
def _trainable(model: nn.Module, freeze: tuple[str, ...] | None) -> Iterator[None]:
    """Parameters take gradients inside unless frozen; afterwards as before."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    if not any(before.values()):
        # Nobody chose: a model that was loaded for inference.
        model.requires_grad_(True)
    modules = {name: module for name, module in model.named_modules() if name}
    for rule in freeze or ():
        for name in match(rule, modules, "recover.freeze"):
            modules[name].requires_grad_(False)
    try:
        yield
    finally:
        for parameter, needed in before.items():
            parameter.requires_grad_(needed)


def _notes(step: Recover, result: Recovery, num_samples: int) -> list[str]:
    first, best = result.checks[0], result.best
    words = f"recovered in {result.steps} steps on {num_samples} samples,"
    words += f" {result.checks[-1].minutes:.1f} minutes; loss on held-out samples"
    notes = [f"{words} {first.validation:.4g} -> {best.validation:.4g} (step {best.step})."]
    if best is first:
        notes.append("recover: no step made the model better; it is as it was before the stage.")
    if result.skipped:
        notes.append(f"recover: {result.skipped} steps had no finite gradients and were skipped.")
    if step.quantise:
        notes.append(
            "recover: trained for int8 kernels, gossamer.compile(model, precision='int8'); files"
            " and fp32 kernels hold the weights as they are before rounding."
        )
    return notes
