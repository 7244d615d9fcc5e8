# SPDX-License-Identifier: Apache-2.0
"""One `prune` stage of a recipe, carried out on a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gossamer.errors import RecipeError
from gossamer.patterns import Pattern, parse_pattern
from gossamer.prune import LayerResult, Plan, apply_plan, plan_oneshot
from gossamer.prune.batches import Batch
from gossamer.prune.budgets import BUDGETS, BudgetLayer
from gossamer.prune.calibrated import CalibratedPruning, Journal, LayerProgress
from gossamer.prune.methods import Method, make_method
from gossamer.prune.plan import check_layer
from gossamer.prune.targets import Target, find_targets
from gossamer.recipes.schema import Prune

# Ranked by their scores alone, layer by layer or over all layers.
_BY_SCORE = ("magnitude", "random")


@dataclass(frozen=True)
class StageInput:
    """What a stage may use.

    Attributes:
        batches: calibration data; None if the user gave none.
        journal: remembers solved layers, for runs that can be interrupted.
        progress: called after each layer.
    """

    batches: Sequence[Batch] | None = None
    journal: Journal = field(default_factory=Journal)
    progress: Callable[[LayerProgress], None] = lambda done: None


@dataclass(frozen=True)
class StageResult:
    """The layers a stage pruned, and what the user should know."""

    layers: list[LayerResult]
    notes: list[str]


def run_prune_stage(model: nn.Module, step: Prune, given: StageInput) -> StageResult:
    """Prune `model` in place; an error leaves it as it was."""
    if step.kind == "scorer" or (step.method in _BY_SCORE and not step.refit):
        plan = plan_oneshot(model, **_plan_arguments(step, given.batches))
        return StageResult(apply_plan(model, plan), [])
    stage = prepare_stage(model, step, given.batches)
    notes: list[str] = []

    def progress(done: LayerProgress) -> None:
        notes.extend(f"{done.name}: {note}." for note in done.notes)
        given.progress(done)

    pruning = CalibratedPruning(
        stage.method,
        stage.pattern,
        match=step.match or "pruned",
        damping=step.damping or 0.01,
        journal=given.journal,
        progress=progress,
    )
    solutions = pruning.run(model, stage.batches, stage.targets, stage.counts)
    masks = [solutions[target.name].mask_RK for target in stage.targets]
    return StageResult(apply_plan(model, Plan(stage.pattern, stage.targets, masks)), notes)


@dataclass(frozen=True)
class PreparedStage:
    """A stage whose settings fit the model: what is pruned, how, and how much of each is kept."""

    method: Method
    pattern: Pattern
    targets: list[Target]
    counts: list[int]
    batches: Sequence[Batch]


def prepare_stage(model: nn.Module, step: Prune, batches: Sequence[Batch] | None) -> PreparedStage:
    """Everything that can be wrong with the settings is found here, before any work."""
    pattern = parse_pattern(step.pattern)
    targets = find_targets(model, _rules(step.targets), _rules(step.ignore))
    for target in targets:
        check_layer(target, pattern)
    if batches is None:
        raise RecipeError(
            f"recipe: method {step.method!r} looks at the inputs of every layer and needs"
            " calibration data: data=[...], or --data FILE on the command line."
        )
    return PreparedStage(_method(step), pattern, targets, _counts(step, pattern, targets), batches)


def _method(step: Prune) -> Method:
    settings: dict[str, Any] = {}
    if step.damping is not None:
        settings["damping"] = step.damping
    if step.block is not None:
        settings["block"] = step.block
    if step.quantise is not None:
        settings["bits"] = step.quantise
    return make_method(step.method, settings, refit=step.refit, damping=step.damping or 0.01)


def _counts(step: Prune, pattern: Pattern, targets: Sequence[Target]) -> list[int]:
    density = pattern.resolve_density(None if step.sparsity is None else 1.0 - step.sparsity)
    if pattern.fixed_density is not None and step.budget != "uniform":
        raise RecipeError(
            f"recipe: budget {step.budget!r} gives each layer its own sparsity, but pattern"
            f" {pattern} fixes it at {1 - pattern.fixed_density:g}. Use budget: uniform."
        )
    budget = BUDGETS.get(step.budget)
    if budget.needs_scores:
        raise RecipeError(
            f"recipe: budget {step.budget!r} compares the scores of all layers before any is"
            f" pruned, which {step.method} does not have. Use uniform, erk, owl or sensitivity."
        )
    layers = [BudgetLayer(target.name, tuple(target.weight.shape)) for target in targets]
    return budget(layers, density)


def _plan_arguments(step: Prune, batches: Sequence[Batch] | None) -> dict[str, Any]:
    return {
        "sparsity": step.sparsity,
        "pattern": step.pattern,
        "scorer": step.method,
        "budget": step.budget,
        "targets": _rules(step.targets),
        "ignore": _rules(step.ignore),
        "data": None if batches is None else [batch.arguments for batch in batches],
    }


def _rules(rules: tuple[str, ...] | None) -> list[str] | None:
    return None if rules is None else list(rules)
