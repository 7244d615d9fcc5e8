# SPDX-License-Identifier: Apache-2.0
"""One `prune` stage of a recipe, carried out on a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gossamer.errors import RecipeError
from gossamer.method_table import METHODS
from gossamer.nn.batch import Batch
from gossamer.nn.surgery import unchanged_on_error
from gossamer.patterns import Pattern, parse_pattern
from gossamer.pruning import LayerResult, Method, apply_plan, make_method, plan_oneshot
from gossamer.pruning.budgets import BUDGETS, budget_layers
from gossamer.pruning.calibration import CalibratedPruning, LayerProgress
from gossamer.pruning.gradients import (
    OBERT,
    GradientMethod,
    make_gradient_method,
    prune_by_gradients,
    score_by_gradients,
)
from gossamer.pruning.oneshot import PruningPlan, check_layer, tensors_of
from gossamer.pruning.targets import Target, find_targets
from gossamer.recipes.stages import Prune
from gossamer.runs.stages.base import StageInput, StageOutcome

__all__ = [
    "PreparedStage",
    "method_of",
    "prepare_stage",
    "run_prune_stage",
]

# Fields of a stage that solvers call otherwise; `match` is not the solver's.
_SOLVER_WORDS = {"quantise": "bits"}
_NOT_OF_SOLVERS = "match"
_DAMPING = 0.01


@dataclass(frozen=True)
class PreparedStage:
    """A stage whose settings fit the model: what is pruned, and how much of each is kept."""

    pattern: Pattern
    targets: list[Target]
    counts: list[int]
    batches: Sequence[Batch]


def run_prune_stage(model: nn.Module, step: Prune, given: StageInput) -> StageOutcome:
    """Prune `model` in place; an error leaves it as it was."""
    if step.needs is None or (step.needs == "nothing" and not step.refit):
        plan = plan_oneshot(
            model,
            **step.model_dump(include={"sparsity", "pattern", "budget", "targets", "ignore"}),
            scorer=step.method,
            data=None if given.batches is None else [batch.arguments for batch in given.batches],
        )
        return StageOutcome([], apply_plan(model, plan))
    stage = prepare_stage(model, step, given)
    said: dict[str, list[str]] = {}

    def progress(done: LayerProgress) -> None:
        for note in done.notes:
            said.setdefault(note, []).append(done.name)
        given.progress(done)

    with unchanged_on_error(model, contents=tensors_of(stage.targets)):
        layers = _pruned_layers(model, step, stage, replace(given, progress=progress))
    notes = []
    for note, names in said.items():
        # What is said of all layers is said once.
        is_common = len(names) == len(layers) > 1
        notes += [f"{note}."] if is_common else [f"{name}: {note}." for name in names]
    return StageOutcome(notes, layers)


def _pruned_layers(
    model: nn.Module, step: Prune, stage: PreparedStage, given: StageInput
) -> list[LayerResult]:
    """Solve all layers of a stage with data, and mask them."""
    if step.needs == "gradients":
        if step.refit:
            raise RecipeError(
                f"recipe: refit needs the inputs of every layer, which {step.method} does not look"
                " at. Leave it out."
            )
        solutions = prune_by_gradients(
            model,
            stage.batches,
            given.needed_loss(model),
            stage.targets,
            stage.counts,
            stage.pattern,
            _gradient_method(step, stage.batches),
            given.progress,
        )
    else:
        pruning = CalibratedPruning(
            method_of(step),
            stage.pattern,
            match=step.match or "pruned",
            damping=step.damping or _DAMPING,
            journal=given.journal,
            progress=given.progress,
        )
        solutions = pruning.run(model, stage.batches, stage.targets, stage.counts)
    masks = [solutions[target.name].mask_RK for target in stage.targets]
    return apply_plan(model, PruningPlan(stage.pattern, stage.targets, masks))


def prepare_stage(model: nn.Module, step: Prune, given: StageInput) -> PreparedStage:
    """Everything that can be wrong with the settings is found here, before any work."""
    pattern = parse_pattern(step.pattern)
    targets = find_targets(model, step.targets, step.ignore)
    for target in targets:
        check_layer(target, pattern)
    batches = given.needed_batches(f"method {step.method!r}")
    density = pattern.resolve_density(None if step.sparsity is None else 1.0 - step.sparsity)
    if pattern.fixed_density is not None and step.budget != "uniform":
        raise RecipeError(
            f"recipe: budget {step.budget!r} gives each layer its own sparsity, but pattern"
            f" {pattern} fixes it at {1 - pattern.fixed_density:g}. Use budget: uniform."
        )
    budget = BUDGETS.get(step.budget)
    layers = budget_layers(model, batches, targets, budget, density, pattern)
    if budget.needs == "scores":
        if step.needs != "gradients":
            raise RecipeError(
                f"recipe: budget {step.budget!r} compares the scores of all layers before any is"
                f" pruned, which {step.method} does not have. Use uniform, erk, owl or sensitivity."
            )
        loss, method = given.needed_loss(model), _gradient_method(step, batches)
        scores = score_by_gradients(model, batches, loss, targets, method)
        layers = [replace(layer, scores=scores[layer.name]) for layer in layers]
    return PreparedStage(pattern, targets, budget(layers, density), batches)


def method_of(step: Prune) -> Method:
    """The layer-wise method of a stage with its settings."""
    return make_method(
        step.method, _settings(step), refit=step.refit, damping=step.damping or _DAMPING
    )


def _gradient_method(step: Prune, batches: Sequence[Batch]) -> GradientMethod:
    """The method of a stage with its settings, if the data is enough for it."""
    method = make_gradient_method(step.method, _settings(step))
    if isinstance(method, OBERT):
        method.check_data(len(batches))
    return method


def _settings(step: Prune) -> dict[str, Any]:
    """The settings of the method's solver."""
    names = () if step.needs is None else METHODS[step.method].settings
    own = step.model_dump(include=set(names), exclude={_NOT_OF_SOLVERS}, exclude_none=True)
    return {_SOLVER_WORDS.get(name, name): value for name, value in own.items()}
