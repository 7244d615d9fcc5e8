# SPDX-License-Identifier: Apache-2.0
"""What budgets want to know of layers: one pass of calibration data through the dense model.

Legend: R rows, K columns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from gossamer.errors import PatternError
from gossamer.nn.batch import Batch
from gossamer.nn.layer_weights import num_parts
from gossamer.patterns import Pattern, Unstructured
from gossamer.patterns.selection import kept_count
from gossamer.pruning.budgets.table import Budget, BudgetLayer
from gossamer.pruning.calibration import check_all_met, met_targets, problem_of
from gossamer.pruning.calibration.experts import expert_problems
from gossamer.pruning.calibration.flow import evaluating
from gossamer.pruning.calibration.statistics import Statistics
from gossamer.pruning.methods import wanda, wanda_scores
from gossamer.pruning.solvers import LayerProblem, Needed, Solve
from gossamer.pruning.targets import Target

# An outlier is so many times as large as the mean Wanda score of its block.
OUTLIER_RATIO = 5.0
# Curves are measured at these parts of the way from 0 to the asked density, and mirrored from 1 to
# it: finest where most layers end up. The first one is the least a layer keeps.
CURVE_PARTS = (0.25, 0.5, 0.7, 0.85, 1.0)


def budget_layers(
    model: nn.Module,
    batches: Sequence[Batch],
    targets: Sequence[Target],
    budget: Budget,
    density: float,
    pattern: Pattern,
) -> list[BudgetLayer]:
    """The targets with what `budget` needs to know of them; scores are the caller's business.

    Args:
        model: stays as it is.
        batches: calibration data; looked at only where the budget needs it.
        targets: layers.
        budget: that will share the density.
        density: that it will share.
        pattern: of the masks.
    """
    if budget.needs == "outliers":
        return layers_with_outliers(model, batches, targets)
    if budget.needs == "errors":
        return layers_with_errors(model, batches, targets, density, pattern=pattern)
    return [BudgetLayer(target.name, tuple(target.weight.shape)) for target in targets]


def layers_with_outliers(
    model: nn.Module, batches: Sequence[Batch], targets: Sequence[Target]
) -> list[BudgetLayer]:
    """The targets with the part of outliers among the Wanda scores |w| ||x|| of their block.

    A block is everything below a name that ends in a number, such as model.layers.3; a target
    without a number in its name is a block of its own. What an earlier mask pruned does not count.
    """
    squares: dict[str, list[torch.Tensor | None]] = {}
    for name, problem in _problems(model, batches, targets, "squares"):
        squares.setdefault(name, []).append(problem.gram_KK)
    blocks: dict[str, list[Target]] = {}
    for target in targets:
        blocks.setdefault(block_of(target.name), []).append(target)
    parts = {
        name: outlier_part([_scores(target, squares[target.name]) for target in members])
        for name, members in blocks.items()
    }
    return [
        BudgetLayer(t.name, tuple(t.weight.shape), outliers=parts[block_of(t.name)])
        for t in targets
    ]


def layers_with_errors(
    model: nn.Module,
    batches: Sequence[Batch],
    targets: Sequence[Target],
    density: float,
    *,
    pattern: Pattern | None = None,
    solve: Solve | None = None,
) -> list[BudgetLayer]:
    """The targets with the relative change of their outputs at a few densities.

    Every layer is measured alone, with the inputs that the dense model gives it; its Gram matrix
    is forgotten before the next layer is met.

    Args:
        model: stays as it is.
        batches: calibration data; all are held at once.
        targets: layers.
        density: that will be asked for; curves are finest around it.
        pattern: of the masks; unstructured if left out.
        solve: how a layer is pruned for the measurement; Wanda if left out, whose order of the
            layers is that of the dearer methods at a fraction of their time.
    """
    prune, rule = solve or wanda(), pattern or Unstructured()
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for name, layer in _problems(model, batches, targets, "gram"):
        numel = layer.weight_RK.numel()
        num_kept = numel if layer.allowed_RK is None else int(layer.allowed_RK.sum())
        curve = [
            (count, _error(replace(layer, pattern=rule, count=count), prune))
            for count in _counts(density, numel, num_kept)
        ]
        curves.setdefault(name, []).append([*curve, (num_kept, 0.0)])
    return [
        BudgetLayer(t.name, tuple(t.weight.shape), errors=_together(curves[t.name]))
        for t in targets
    ]


def _together(curves: list[list[tuple[int, float]]]) -> tuple[tuple[int, float], ...]:
    """The curve of a layer whose parts have these: kept weights add up, errors are averaged."""
    if len(curves) == 1:
        return tuple(curves[0])
    # An earlier mask may leave some parts fewer points; those of the shortest are in all of them.
    shortest = min(map(len, curves))
    points = zip(*(curve[-shortest:] for curve in curves), strict=True)
    return tuple(
        (sum(count for count, _ in point), sum(error for _, error in point) / len(curves))
        for point in points
    )


def pattern_errors(
    model: nn.Module,
    batches: Sequence[Batch],
    targets: Sequence[Target],
    choices: Sequence[tuple[Pattern, float]],
) -> list[float]:
    """The mean relative change of the targets' outputs under each (pattern, density), by Wanda.

    Every layer is measured alone, as in `layers_with_errors`: a forecast of what a method would do
    to the model, in seconds. Infinite where a pattern does not fit one of the layers.
    """
    prune, sums = wanda(), [0.0] * len(choices)
    parts = {target.name: num_parts(target.module) for target in targets}
    for name, layer in _problems(model, batches, targets, "gram"):
        for number, (pattern, density) in enumerate(choices):
            count = kept_count(density, layer.weight_RK.numel())
            try:
                pattern.check_shape(layer.weight_RK.shape)
                error = _error(replace(layer, pattern=pattern, count=count), prune)
                sums[number] += error / parts[name]
            except PatternError:
                sums[number] = math.inf
    return [total / max(len(targets), 1) for total in sums]


def block_of(name: str) -> str:
    """The name up to its first number: model.layers.3.mlp.up_proj is in model.layers.3."""
    parts = name.split(".")
    numbered = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts) - 1)
    return ".".join(parts[: numbered + 1])


def outlier_part(scores: Sequence[torch.Tensor]) -> float:
    """The part of all scores together that is above OUTLIER_RATIO times their mean."""
    num_scores = sum(part.numel() for part in scores)
    if not num_scores:
        return 0.0
    mean = sum(float(part.sum(dtype=torch.float64)) for part in scores) / num_scores
    return sum(int((part > OUTLIER_RATIO * mean).sum()) for part in scores) / num_scores


def _problems(
    model: nn.Module, batches: Sequence[Batch], targets: Sequence[Target], needed: Needed
) -> Iterator[tuple[str, LayerProblem]]:
    """Every target with the moments of its inputs, as the data meets them; experts one by one."""
    statistics = Statistics(needed, batches)
    met = set()
    with evaluating(model), torch.no_grad():
        statistics.look_ahead(model, targets)
        for target, stop in met_targets(model, batches, targets):
            met.add(target.name)
            if num_parts(target.module) > 1:
                for part in expert_problems(target, stop, needed, Unstructured(), 0):
                    yield target.name, part.problem
            else:
                known = statistics.of(target, stop)
                yield target.name, problem_of(target, known, Unstructured(), 0)
    check_all_met(targets, met, "the budget cannot measure it")


def _error(problem: LayerProblem, solve: Solve) -> float:
    if problem.gram_KK is None:  # an expert that saw no token
        return 0.0
    return problem.error(solve(problem).weight_RK)


def _scores(target: Target, squares: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Wanda's, without what an earlier mask pruned; 0 of an expert that saw no token."""
    whole = problem_of(target, None, Unstructured(), 0)
    parts = [
        torch.zeros_like(part)
        if squares_K is None
        else wanda_scores(replace(whole, weight_RK=part, gram_KK=squares_K))
        for part, squares_K in zip(whole.weight_RK.chunk(len(squares)), squares, strict=True)
    ]
    scores_RK = torch.cat(parts)
    return scores_RK if target.mask is None else scores_RK[target.mask]


def _counts(density: float, numel: int, num_kept: int) -> list[int]:
    """Where a curve is measured: ascending, below everything there is."""
    densities = [part * density for part in CURVE_PARTS]
    densities += [1 - part * (1 - density) for part in CURVE_PARTS[:-1]]
    # Rounded down: the least counts of all layers must fit the total.
    counts = {math.floor(densities[0] * numel), *(kept_count(d, numel) for d in densities[1:])}
    return sorted(count for count in counts if count < num_kept)
