# SPDX-License-Identifier: Apache-2.0
"""One `structured` stage of a recipe: whole heads and filters go, the model gets smaller."""

from collections.abc import Sequence

import torch
from torch import nn

from gossamer.nn.batch import Batch
from gossamer.pruning.gradients import Loss
from gossamer.pruning.structured import prune_structured
from gossamer.recipes.stages import Structured
from gossamer.runs.stages.base import StageInput, StageOutcome


def run_structured_stage(model: nn.Module, step: Structured, given: StageInput) -> StageOutcome:
    """Make `model` smaller in place."""
    batches, held = hold_out(given.needed_batches("structured pruning"), step.hold_out)
    plain_loss, dense = given.needed_loss(model), _sizes(model)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        # Before each one it is safe to stop, and nobody knows how many will come.
        given.tick(0, 0)
        return plain_loss(model, batch)

    result = prune_structured(
        model,
        batches,
        loss,
        tokens=mean_tokens(batches),
        **step.model_dump(exclude={"min_units", "hold_out"}),
        min_heads=step.min_units,
        min_filters=step.min_units,
        keep=_keep if any(batch.keep is not None for batch in batches) else None,
        evaluate=(lambda state: -_mean_loss(state, held, loss)) if held else None,
    )
    undone = [stage.name for stage in result.stages if not stage.kept]
    lines = [
        f"{block.name}: {len(block.heads)} heads and {len(block.filters)} filters are left."
        for block in result.blocks
    ]
    left = f"{result.fraction:.1%} of the blocks' {step.cost} are left, {_sizes(model) / dense:.1%}"
    notes = [f"{left} of all parameters.", *lines, *result.notes]
    if undone:
        notes.append(f"Taken back, because held-out batches lost by it: {', '.join(undone)}.")
    return StageOutcome(notes, changed_shapes=True)


def hold_out(batches: Sequence[Batch], part: float) -> tuple[list[Batch], list[Batch]]:
    """(batches to work with, batches to choose by), spread evenly; too few of them are not split.

    Reconstruction overfits small samples, and rearranging by a noisy Fisher matrix can lose: what
    a stage did is judged on data that it has not seen.
    """
    count = int(len(batches) * part)
    if not count:
        return list(batches), []
    # Batches are often sorted by length: both parts must see all lengths.
    chosen = {(2 * i + 1) * len(batches) // (2 * count) for i in range(count)}
    used = [batch for number, batch in enumerate(batches) if number not in chosen]
    return used, [batches[number] for number in sorted(chosen)]


def _mean_loss(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> float:
    with torch.no_grad():
        return sum(float(loss(model, batch)) for batch in batches) / len(batches)


def mean_tokens(batches: Sequence[Batch]) -> float:
    """Tokens of a sequence, padding not counted."""
    tokens = sequences = 0
    for batch in batches:
        first = batch.first_tensor()
        if first is not None and first.ndim >= 2:
            tokens += int(_keep(batch).sum())
            sequences += len(first)
    return tokens / sequences if sequences else 1.0


def _keep(batch: Batch) -> torch.Tensor:
    if batch.keep is not None:
        return batch.keep
    first = batch.first_tensor()
    if first is None:
        raise ValueError("a batch without tensors")
    return torch.ones(first.shape[:2], dtype=torch.bool)


def _sizes(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
