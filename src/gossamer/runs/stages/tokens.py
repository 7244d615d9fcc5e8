# SPDX-License-Identifier: Apache-2.0
"""One `tokens` stage of a recipe: an encoder learns which tokens it can do without."""

import itertools

import torch
from torch import nn

from gossamer.nn.batch import Batch
from gossamer.nn.tokens import add_token_pruning
from gossamer.recipes.stages import Tokens
from gossamer.runs.stages.base import StageInput, StageOutcome, call_model, same_fields
from gossamer.runs.stages.recover import samples_for, trainable
from gossamer.runs.stages.recover_data import SortedBatches
from gossamer.training.recovery.distillation import (
    DistillationObjective,
    Teacher,
    Terms,
    check_apart,
)
from gossamer.training.token_pruning import (
    TokenPlan,
    measure_tokens,
    set_thresholds,
    train_token_pruning,
)

# Batches that thresholds are read off, and that tokens are counted on.
_SHOWN = 10


def run_tokens_stage(model: nn.Module, step: Tokens, given: StageInput) -> StageOutcome:
    """Give `model` token pruning and train it in place."""
    teacher = given.needed_teacher()
    check_apart(teacher, model)
    samples, size = samples_for(given, step.batch, "a tokens stage")
    ordered = SortedBatches(samples, size, step.seed)
    batches = [ordered[number] for number in range(len(ordered))]
    encoder = add_token_pruning(model, normalise=step.normalise, dropped=step.dropped)
    kept = [step.keep ** (layer + 1) for layer in range(len(encoder.layer))]
    set_thresholds(model, batches[:_SHOWN], call_model, kept)
    steps = step.soft_steps + step.hard_steps
    if steps:
        terms = Terms(logits=step.logits, embeddings=step.embeddings)
        objective, seen = DistillationObjective(Teacher(teacher), terms), itertools.count()

        def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
            # One loss per step; that of the first one comes before it is done.
            given.tick(next(seen), steps)
            return objective(net, batch)[0]

        plan = TokenPlan(
            **same_fields(step, TokenPlan),
            lr=step.rate,
            threshold_lr=step.threshold_rate,
            final_temperature=step.temperature / 5,
        )
        with trainable(model, step.freeze, "tokens.freeze"):
            train_token_pruning(model, batches, loss, plan)
    cost = measure_tokens(model, batches[:_SHOWN], call_model)
    shares = ", ".join(f"{100 * part:.0f}" for part in cost.kept)
    notes = [
        f"tokens: {shares} % of {cost.tokens:.1f} are left after each layer,"
        f" {100 * cost.macs:.0f} % of the layers' multiply-adds.",
        "tokens: time is saved by gossamer.running.encoder.ragged.run_packed(model) only.",
    ]
    return StageOutcome(notes)
