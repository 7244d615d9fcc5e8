# SPDX-License-Identifier: Apache-2.0
"""One `relufy` stage of a recipe: activations become ReLU, and their zeros are counted."""

from torch import nn

from gossamer.nn.relufication import choose_shifts, fold_shifts, relufy
from gossamer.nn.relufication.states import relu_states
from gossamer.recipes.stages import Relufy
from gossamer.runs.stages.base import StageInput, StageOutcome, call_model
from gossamer.training.recovery import measure_activation_sparsity


def run_relufy_stage(model: nn.Module, step: Relufy, given: StageInput) -> StageOutcome:
    """Change `model` in place."""
    batches = given.needed_batches("a relufy stage")
    zeros, keeps = step.zeros, step.form == "threshold"
    shifts = 0.0 if zeros is None else choose_shifts(model, batches, call_model, zeros=zeros)
    relufy(model, shifts, keeps=keeps, norms=step.norms)
    # As biases, shifts are trained by what follows, and files need not know of them.
    fold_shifts(model)
    keep = (lambda batch: batch.keep) if all(batch.keep is not None for batch in batches) else None
    found = measure_activation_sparsity(model, batches, call_model, keep=keep)
    dead = max(layer.dead for layer in found.layers)
    notes = [
        f"relufy: {found.zeros:.0%} of the activations in feed-forward blocks are zero before"
        f" training, at most {dead:.0%} of a block's neurons for every token."
    ]
    if relu_states(model):
        notes.append(
            "relufy: shifts, thresholds and ReLUs behind norms are in files of gossamer; other"
            " programs do not know of them."
        )
    return StageOutcome(notes)
