# SPDX-License-Identifier: Apache-2.0
"""Pruning by gradients of a loss: all gradients at the given weights, then all new weights."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gossamer.method_table import METHODS, methods_that_need
from gossamer.nn.batch import Batch
from gossamer.nn.surgery import unchanged_on_error
from gossamer.patterns import Pattern, Unstructured
from gossamer.pruning.calibration import LayerProgress, problem_of
from gossamer.pruning.calibration.flow import evaluating, kept_flags
from gossamer.pruning.gradients.passes import GradientMethod, GradientPasses, GradientProblems, Loss
from gossamer.pruning.legal_counts import check_inside
from gossamer.pruning.methods import built
from gossamer.pruning.solvers import LayerSolution
from gossamer.pruning.targets import Target
from gossamer.registry import Registry

_STUB = """\
from gossamer.pruning.gradients.pruning import GRADIENT_METHODS
from gossamer.pruning.gradients.passes import RunningMean

GRADIENT_METHODS.add("{name}", lambda: RunningMean(of_gradient, of_weight))
"""

GRADIENT_METHODS: Registry[Callable[..., GradientMethod]] = Registry("gradient method", _STUB)
for _name in methods_that_need("gradients"):
    GRADIENT_METHODS.add(_name, METHODS[_name].builder())


def make_gradient_method(name: str, settings: Mapping[str, Any] | None = None) -> GradientMethod:
    """The method called `name`; a setting that it does not have is refused."""
    return built(name, GRADIENT_METHODS.get(name), settings or {})


def prune_by_gradients(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    targets: Sequence[Target],
    counts: Sequence[int],
    pattern: Pattern,
    method: str | GradientMethod,
    progress: Callable[[LayerProgress], None] = lambda done: None,
) -> dict[str, LayerSolution]:
    """New weights for all targets, written into the model; an error leaves it as it was.

    Gradients are those of the model as it is given: all layers are judged before one is changed.
    The model runs in eval mode; modes, requires_grad and .grad are afterwards as before.

    Args:
        model: any module.
        batches: calibration data, one backward pass each.
        loss: `loss(model, batch)` gives a scalar; see `gossamer.pruning.gradients.losses`.
        targets: layers.
        counts: kept weights of each; patterns with a fixed density ignore them.
        pattern: which masks are legal.
        method: taylor, fisher, obert, or what `make_gradient_method` gives.
        progress: called after each layer.
    """
    prune = make_gradient_method(method) if isinstance(method, str) else method
    solutions: dict[str, LayerSolution] = {}
    weights = [target.weight for target in targets]
    with unchanged_on_error(model, contents=weights), evaluating(model), kept_flags(model):
        problems = _problems(GradientPasses(model, batches, loss), targets, counts, pattern)
        started = time.perf_counter()
        solved = zip(problems.layers, prune.solutions(problems), strict=True)
        for number, (layer, solution) in enumerate(solved, start=1):
            check_inside(layer.name, solution.mask_RK, layer.allowed_RK, pattern)
            solutions[layer.name] = solution
            seconds = time.perf_counter() - started
            progress(LayerProgress(layer.name, number, len(targets), None, seconds, solution.notes))
            started = time.perf_counter()
        for target in targets:
            target.weight.data.copy_(solutions[target.name].weight_RK.view(target.weight.shape))
    return solutions


def score_by_gradients(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    targets: Sequence[Target],
    method: str | GradientMethod,
) -> dict[str, torch.Tensor]:
    """Scores [R, K] of all targets, for budgets that rank them together; nothing is changed.

    What an earlier mask pruned scores -inf. Arguments as for `prune_by_gradients`.
    """
    rank = make_gradient_method(method) if isinstance(method, str) else method
    with evaluating(model), kept_flags(model):
        passes = GradientPasses(model, batches, loss)
        problems = _problems(passes, targets, [0] * len(targets), Unstructured())
        scored = zip(problems.layers, rank.scores(problems), strict=True)
        return {layer.name: layer.inside(scores_RK) for layer, scores_RK in scored}


def _problems(
    passes: GradientPasses, targets: Sequence[Target], counts: Sequence[int], pattern: Pattern
) -> GradientProblems:
    layers = [problem_of(t, None, pattern, count) for t, count in zip(targets, counts, strict=True)]
    for layer in layers:
        pattern.check_shape(layer.weight_RK.shape, f"{layer.name}.weight")
    return GradientProblems(passes, targets, layers)
