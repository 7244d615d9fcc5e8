# SPDX-License-Identifier: Apache-2.0
"""From scores to masks: a budget says how many of each layer, the pattern which ones are legal."""

import math
from collections.abc import Sequence

import torch

from gossamer.errors import InputError
from gossamer.patterns import NM, Block, Pattern, Unstructured, kept_count
from gossamer.pruning.budgets import BUDGETS, BudgetLayer
from gossamer.pruning.schedules.layers import ControlledLayer
from gossamer.pruning.schedules.moments import uniform_scores
from gossamer.pruning.schedules.radix_select import keep_largest_across
from gossamer.pruning.schedules.run import Run
from gossamer.pruning.solvers import keep_highest

Scores = Sequence[torch.Tensor]


def magnitudes(layers: Sequence[ControlledLayer]) -> list[torch.Tensor]:
    """|w| [R, K] of every layer; pruned ones rank below all others."""
    return [
        checked_scores(layer.name, pruned_last(layer.matrix.abs(), layer.mask)) for layer in layers
    ]


def random_scores(
    layers: Sequence[ControlledLayer], seed: int, step: int = 0
) -> list[torch.Tensor]:
    """Numbers in (0, 1) for every weight [R, K], the same on every rank and after every resume."""
    return [
        uniform_scores(tuple(layer.mask.shape), seed, layer.name, step).to(layer.mask.device)
        for layer in layers
    ]


def pruned_last(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Below every other score where `mask` is False."""
    return scores.masked_fill(~mask, -math.inf)


def checked_scores(name: str, scores: torch.Tensor) -> torch.Tensor:
    """The scores in float32 or wider; InputError naming the layer if one is NaN."""
    num_nan = int(scores.isnan().sum())
    if num_nan:
        raise InputError(
            f"{name}.weight: {num_nan} of {scores.numel()} scores are NaN, so masks cannot move."
            " The training diverged: lower the learning rate, clip gradients, take a checkpoint."
        )
    return scores.float() if scores.element_size() < 4 else scores


def layer_counts(run: Run, budget: str, density: float, scores: Scores | None = None) -> list[int]:
    """How many weights each layer keeps; scores are needed by budget global."""
    layers = [
        BudgetLayer(layer.name, tuple(layer.weight.shape), None if scores is None else scores[i])
        for i, layer in enumerate(run.layers)
    ]
    if budget == "global" and run.shards is not None and scores is not None:
        return _counts_across(run, density, scores)
    return BUDGETS.get(budget)(layers, density)


def layer_masks(scores: Scores, counts: Sequence[int], pattern: Pattern) -> list[torch.Tensor]:
    """Legal masks with the highest scores; counts are those of the nearest legal density."""
    return [
        keep_highest(score, count, pattern) for score, count in zip(scores, counts, strict=True)
    ]


def best_masks(
    run: Run, budget: str, density: float, scores: Scores, pattern: Pattern | None = None
) -> list[torch.Tensor]:
    """Masks at a density of all layers together."""
    rule = run.pattern if pattern is None else pattern
    if rule.fixed_density is not None:
        return [rule.project(score) for score in scores]
    return layer_masks(scores, layer_counts(run, budget, density, scores), rule)


def on_the_way(pattern: Pattern, density: float, kind: str) -> Pattern:
    """The pattern of masks that are denser than the final ones: N rises, other rules stay."""
    if isinstance(pattern, Unstructured | Block):
        return pattern
    if isinstance(pattern, NM):
        kept = min(pattern.group, max(pattern.num_kept, math.ceil(density * pattern.group - 1e-9)))
        return NM(kept, pattern.group)
    raise InputError(
        f"schedule {kind}: pattern {pattern} has no masks between dense and its own density. Use"
        " unstructured, N:M or block:RxC, or the schedule oneshot."
    )


def _counts_across(run: Run, density: float, scores: Scores) -> list[int]:
    """Budget global over all processes that hold a part of the model."""
    # Kept zeros must rank above pruned ones, and the selection takes nothing below 0.
    tiny = 2.0**-149
    ranked = [torch.where(s == -math.inf, 0.0, s.clamp_min(tiny)) for s in scores]
    own = torch.tensor(sum(score.numel() for score in scores))
    torch.distributed.all_reduce(own, group=run.shards)
    kept = keep_largest_across(ranked, kept_count(density, int(own)), run.shards)
    return [int(mask.sum()) for mask in kept]
