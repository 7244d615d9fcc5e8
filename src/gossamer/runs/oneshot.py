# SPDX-License-Identifier: Apache-2.0
"""`gossamer.sparsify`: prune in one shot and say what it gained and cost."""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, RecipeError
from gossamer.method_table import METHODS, methods_that_need
from gossamer.nn.batch import Batch
from gossamer.nn.moe import adopt_experts
from gossamer.nn.surgery import unchanged_on_error
from gossamer.patterns import Pattern
from gossamer.pruning import Scorer, apply_plan, plan_oneshot
from gossamer.pruning.calibration.flow import as_batches
from gossamer.pruning.gradients import Loss
from gossamer.pruning.targets import Rules
from gossamer.recipes import Recipe, load_recipe, prune_recipe
from gossamer.recipes.phrases import near
from gossamer.recipes.stages import Prune, Recover, Structured
from gossamer.report import Report
from gossamer.runs.executor import carry_out, execute
from gossamer.runs.reporting import Evaluate
from gossamer.runs.stages import StageInput, StageOutcome

# loss(model, batch) -> a tensor with one number; the batch is an item of `data`.
TaskLoss = Callable[[nn.Module, Any], torch.Tensor]
_OWN_LOSS = "a loss of your own"
_DEFAULTS: dict[str, Any] = {
    "sparsity": None,
    "pattern": "unstructured",
    "scorer": "magnitude",
    "budget": "uniform",
    "targets": None,
    "ignore": None,
}


def sparsify(  # noqa: PLR0913  (the public call: every argument is a word of the vocabulary)
    model: nn.Module,
    recipe: Mapping[str, Any] | Recipe | str | os.PathLike[str] | None = None,
    *,
    sparsity: float | None = None,
    pattern: str | Pattern = "unstructured",
    scorer: str | Scorer = "magnitude",
    budget: str = "uniform",
    targets: Rules = None,
    ignore: Rules = None,
    data: Iterable[Any] | None = None,
    loss: TaskLoss | None = None,
    evaluate: Evaluate | None = None,
) -> Report:
    """Prune `model` in one shot, in place, and report bytes, time and quality beside dense.

    Layers become masked: they train on with their mask held, and `to_dense()` gives ordinary
    layers with exact zeros. Per layer exactly round((1 - sparsity) * numel) weights are kept
    (unstructured, uniform). An error at any step leaves the model as it was, the same layers with
    the same numbers; for that its tensors are held a second time until the call ends. Experts of
    transformers, which are 3-D Parameters, become layers first (`gossamer.nn.moe`); routers are
    never pruned.

    Example:
        >>> report = gossamer.sparsify(model, sparsity=0.9)
        >>> print(report)

    Args:
        model: any module. Default targets: every Linear and Conv2d, except one tied to an embedding
            or whose last path component is lm_head, head or classifier.
        recipe: used instead of these arguments: a mapping with keys sparsity, pattern, scorer,
            budget, targets, ignore; or a whole recipe: a file, a built-in name, or a Recipe.
        sparsity: fraction of zeros in [0, 1); leave it out for patterns that fix it.
        pattern: "unstructured", "2:4", "64:2:8", "nmg:2:4:16", "block:4x4".
        scorer: what says which weights matter: "magnitude", "random"; with data "wanda",
            "sparsegpt", "admm", "exact-obs", and by gradients of a loss "taylor", "fisher",
            "obert".
        budget: "uniform", "global", "erk" or "half-erk".
        targets: class names, globs or "re:..." that replace the default targets.
        ignore: rules that are taken away from them.
        data: batches: a tensor, a tuple of arguments or a mapping of keyword arguments each. The
            first one times the dense against the compiled pruned model; scorers that look at
            activations read them all. Beside `loss` a pair is (input, target).
        loss: loss(model, batch) -> a tensor with one number, for scorers that look at gradients;
            it calls the model itself and gets the batches as they are given. Without it a loss that
            fits the model's outputs is used, see docs/how-to/prune-with-data.md.
        evaluate: called with the model before and after; its number is the quality.
    """
    arguments = {
        "sparsity": sparsity,
        "pattern": pattern,
        "scorer": scorer,
        "budget": budget,
        "targets": targets,
        "ignore": ignore,
    }
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    wanted = _read(recipe, arguments)
    with unchanged_on_error(model):
        adopt_experts(model)
        if isinstance(wanted, Recipe):
            if loss is None:
                return execute(wanted, model, data, evaluate=evaluate)
            pairs = [_labelled(batch) for batch in as_batches(data, _OWN_LOSS)]
            given = StageInput(loss=_as_loss(loss, wanted))
            return execute(wanted, model, pairs, evaluate=evaluate, given=given)
        if loss is not None:
            scorer = wanted["scorer"]
            name = scorer if isinstance(scorer, str) else type(scorer).__name__
            raise InputError(
                f"loss: scorer {name!r} uses no loss. Leave it out, or use one that looks at"
                " gradients: scorer='taylor', 'fisher' or 'obert'."
            )
        # Only a scorer that leaves the kept weights as they are comes here, and only it looks at
        # all of the data.
        batches = iter(() if data is None else data)
        first = list(itertools.islice(batches, 1))
        every = None if data is None else itertools.chain(first, batches)
        plan = plan_oneshot(model, **wanted, data=every)

        def mask() -> StageOutcome:
            return StageOutcome([], apply_plan(model, plan))

        return carry_out(model, [mask], evaluate, first[0] if first else None)


def _read(recipe: Any, arguments: dict[str, Any]) -> Recipe | dict[str, Any]:
    """What is carried out stage by stage, or the settings of a scorer that needs no stages."""
    if isinstance(recipe, Recipe | str | os.PathLike):
        for key, value in arguments.items():
            if value != _DEFAULTS[key]:
                raise RecipeError(
                    f"recipe: {key} is given beside a whole recipe. Say it in the recipe, or change"
                    " it with load_recipe(name, overrides=[...])."
                )
        return recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if not isinstance(recipe, Mapping | None):
        raise RecipeError(
            f"recipe: expected a mapping with keys {', '.join(_DEFAULTS)}, a file, a built-in name"
            f" or a Recipe; got {type(recipe).__name__}."
        )
    for key, value in (recipe or {}).items():
        if key not in _DEFAULTS:
            hint = near(key, tuple(_DEFAULTS))
            raise RecipeError(f"recipe: unknown key {key!r}.{hint} Known: {', '.join(_DEFAULTS)}.")
        if arguments[key] != _DEFAULTS[key] and arguments[key] != value:
            raise RecipeError(
                f"recipe: {key} is {value!r} in the recipe and {arguments[key]!r} in the call."
                " Give it once."
            )
    settings = {**arguments, **(recipe or {})}
    method = METHODS.get(settings["scorer"])
    if method is None or method.needs == "nothing":
        return settings
    step = {**settings, "pattern": str(settings["pattern"])}
    step["method"] = step.pop("scorer")
    return prune_recipe(step, "gossamer.sparsify")


def _labelled(batch: Batch) -> Batch:
    pair = batch.arguments
    if batch.labels is not None or not isinstance(pair, list | tuple) or len(pair) != 2:
        return batch
    return replace(as_batches([pair[0]], _OWN_LOSS)[0], labels=pair[1])


def _as_loss(loss: TaskLoss, recipe: Recipe) -> Loss:
    """The user's loss, called with batches as the user gave them; refused where nobody calls it."""
    if not callable(loss):
        raise InputError(f"loss: expected loss(model, batch), got {type(loss).__name__}.")
    by_gradients = any(step.needs == "gradients" for step in recipe.steps_of(Prune))
    if by_gradients or any(isinstance(s.step, Structured | Recover) for s in recipe.stages):
        return lambda model, batch: loss(
            model, batch.arguments if batch.labels is None else (batch.arguments, batch.labels)
        )
    raise RecipeError(
        "loss: no stage of the recipe uses a loss. Leave it out, or use a method that looks at"
        f" gradients: {', '.join(methods_that_need('gradients'))}."
    )
