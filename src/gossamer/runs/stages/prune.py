# SPDX-License-Identifier: Apache-2.0
"""One `prune` stage of a recipe, carried out on a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from gossamer.errors import RecipeError
from gossamer.nn import unchanged_on_error
from gossamer.nn.batch import Batch
from gossamer.patterns import Pattern, parse_pattern
from gossamer.pruning import LayerResult, PruningPlan, apply_plan, plan_oneshot
from gossamer.pruning.budgets.measures import budget_layers
from gossamer.pruning.budgets.table import BUDGETS, BudgetLayer
from gossamer.pruning.calibration.calibrated import CalibratedPruning, Journal, LayerProgress
from gossamer.pruning.gradients.losses import default_loss
from gossamer.pruning.gradients.obert import OBERT
from gossamer.pruning.gradients.passes import Loss
from gossamer.pruning.gradients.pruning import (
    GRADIENT_METHODS,
    make_gradient_method,
    prune_by_gradients,
    score_by_gradients,
)
from gossamer.pruning.gradients.scores import GradientMethod
from gossamer.pruning.methods import Method, make_method
from gossamer.pruning.oneshot import check_layer, tensors_of
from gossamer.pruning.solvers.problem import LayerSolution
from gossamer.pruning.targets import Target, find_targets
from gossamer.recipes.schema import Prune

if TYPE_CHECKING:
    from gossamer.runs.kept_run import KeptRun
    from gossamer.runs.stages.recover_data import RecoverySamples

# Ranked by their scores alone, layer by layer or over all layers.
_BY_SCORE = ("magnitude", "random")


@dataclass(frozen=True)
class StageInput:
    """What a stage may use.

    Attributes:
        batches: calibration data; None if the user gave none.
        loss: of a batch, for methods that look at gradients; None: see `prune.losses`.
        journal: remembers solved layers, for runs that can be interrupted.
        progress: called after each layer.
        teacher: the dense model, for recovery; None: the model as it is before the first stage.
        samples: what recovery trains on; None: the calibration batches.
        kept: where recovery keeps its checkpoints and metrics; None keeps nothing.
        say: gets a line for people whenever recovery has looked at the model.
        tick: called where it is safe to stop, after every step of training with its number and how
            many there are (0, 0 where that is not known); what it raises ends the stage.
    """

    batches: Sequence[Batch] | None = None
    loss: Loss | None = None
    journal: Journal = field(default_factory=Journal)
    progress: Callable[[LayerProgress], None] = lambda done: None
    teacher: nn.Module | None = None
    samples: "RecoverySamples | None" = None
    kept: "KeptRun | None" = None
    say: Callable[[str], None] = lambda text: None
    tick: Callable[[int, int], None] = lambda done, total: None

    def needed_batches(self, asker: str) -> Sequence[Batch]:
        """The batches, or an error that says how to give some."""
        if self.batches is None:
            raise RecipeError(
                f"recipe: {asker} looks at what data does in the model and needs calibration data:"
                " data=[...], or --data FILE on the command line."
            )
        return self.batches

    def needed_loss(self, model: nn.Module) -> Loss:
        """The user's loss, or one that fits the model's outputs."""
        return self.loss or default_loss(model, self.needed_batches("a loss")[0])


@dataclass(frozen=True)
class StageResult:
    """The layers a stage pruned, and what the user should know."""

    layers: list[LayerResult]
    notes: list[str]


@dataclass(frozen=True)
class PreparedStage:
    """A stage whose settings fit the model: what is pruned, and how much of each is kept."""

    pattern: Pattern
    targets: list[Target]
    counts: list[int]
    batches: Sequence[Batch]


def run_prune_stage(model: nn.Module, step: Prune, given: StageInput) -> StageResult:
    """Prune `model` in place; an error leaves it as it was."""
    if step.kind == "scorer" or (step.method in _BY_SCORE and not step.refit):
        plan = plan_oneshot(model, **_plan_arguments(step, given.batches))
        return StageResult(apply_plan(model, plan), [])
    stage = prepare_stage(model, step, given)
    said: dict[str, list[str]] = {}

    def progress(done: LayerProgress) -> None:
        for note in done.notes:
            said.setdefault(note, []).append(done.name)
        given.progress(done)

    with unchanged_on_error(model, contents=tensors_of(stage.targets)):
        layers = _pruned_layers(model, step, stage, replace(given, progress=progress))
    return StageResult(layers, list(_notes(said, len(layers))))


def _notes(said: Mapping[str, Sequence[str]], num_layers: int) -> Iterator[str]:
    """What methods said of layers; of all of them once."""
    for note, names in said.items():
        if len(names) == num_layers > 1:
            yield f"{note}."
        else:
            yield from (f"{name}: {note}." for name in names)


def _pruned_layers(
    model: nn.Module, step: Prune, stage: PreparedStage, given: StageInput
) -> list[LayerResult]:
    """Solve all layers of a stage with data, and mask them."""
    if step.method in GRADIENT_METHODS:
        solutions = _by_gradients(model, step, stage, given)
    else:
        pruning = CalibratedPruning(
            method_of(step),
            stage.pattern,
            match=step.match or "pruned",
            damping=step.damping or 0.01,
            journal=given.journal,
            progress=given.progress,
        )
        solutions = pruning.run(model, stage.batches, stage.targets, stage.counts)
    masks = [solutions[target.name].mask_RK for target in stage.targets]
    return apply_plan(model, PruningPlan(stage.pattern, stage.targets, masks))


def prepare_stage(model: nn.Module, step: Prune, given: StageInput) -> PreparedStage:
    """Everything that can be wrong with the settings is found here, before any work."""
    pattern = parse_pattern(step.pattern)
    targets = find_targets(model, _rules(step.targets), _rules(step.ignore))
    for target in targets:
        check_layer(target, pattern)
    batches = given.needed_batches(f"method {step.method!r}")
    counts = _counts(model, step, pattern, targets, given)
    return PreparedStage(pattern, targets, counts, batches)


def method_of(step: Prune) -> Method:
    """The layer-wise method of a stage with its settings."""
    settings: dict[str, Any] = {}
    if step.damping is not None:
        settings["damping"] = step.damping
    if step.block is not None:
        settings["block"] = step.block
    if step.quantise is not None:
        settings["bits"] = step.quantise
    return make_method(step.method, settings, refit=step.refit, damping=step.damping or 0.01)


def _by_gradients(
    model: nn.Module, step: Prune, stage: PreparedStage, given: StageInput
) -> dict[str, LayerSolution]:
    if step.refit:
        raise RecipeError(
            f"recipe: refit needs the inputs of every layer, which {step.method} does not look at."
            " Leave it out."
        )
    return prune_by_gradients(
        model,
        stage.batches,
        given.needed_loss(model),
        stage.targets,
        stage.counts,
        stage.pattern,
        _gradient_method(step, stage.batches),
        given.progress,
    )


def _gradient_method(step: Prune, batches: Sequence[Batch]) -> GradientMethod:
    """The method of a stage with its settings, if the data is enough for it."""
    settings = {} if step.damping is None else {"damping": step.damping}
    method = make_gradient_method(step.method, settings)
    if isinstance(method, OBERT):
        method.check_data(len(batches))
    return method


def _counts(
    model: nn.Module,
    step: Prune,
    pattern: Pattern,
    targets: Sequence[Target],
    given: StageInput,
) -> list[int]:
    density = pattern.resolve_density(None if step.sparsity is None else 1.0 - step.sparsity)
    if pattern.fixed_density is not None and step.budget != "uniform":
        raise RecipeError(
            f"recipe: budget {step.budget!r} gives each layer its own sparsity, but pattern"
            f" {pattern} fixes it at {1 - pattern.fixed_density:g}. Use budget: uniform."
        )
    budget = BUDGETS.get(step.budget)
    layers = budget_layers(model, given.batches or [], targets, budget, density, pattern)
    if budget.needs == "scores":
        layers = _with_scores(model, step, layers, targets, given)
    return budget(layers, density)


def _with_scores(
    model: nn.Module,
    step: Prune,
    layers: Sequence[BudgetLayer],
    targets: Sequence[Target],
    given: StageInput,
) -> list[BudgetLayer]:
    if step.method not in GRADIENT_METHODS:
        raise RecipeError(
            f"recipe: budget {step.budget!r} compares the scores of all layers before any is"
            f" pruned, which {step.method} does not have. Use uniform, erk, owl or sensitivity."
        )
    batches, loss = given.needed_batches(f"budget {step.budget!r}"), given.needed_loss(model)
    scores = score_by_gradients(model, batches, loss, targets, _gradient_method(step, batches))
    return [replace(layer, scores=scores[layer.name]) for layer in layers]


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
