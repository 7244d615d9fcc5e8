# SPDX-License-Identifier: Apache-2.0
"""A recipe as the arguments of one-shot pruning, for recipes that are one such step."""

import os
from typing import Any

from gossamer.errors import RecipeError
from gossamer.recipes.loader import load_recipe
from gossamer.recipes.schema import Prune, Recipe

_METHODS = ("magnitude", "random")
_BUDGETS = ("uniform", "global", "erk")


def oneshot_settings(recipe: Recipe | str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `plan_oneshot` that a recipe, a file or a built-in name stands for.

    This is the one place that refuses recipes `gossamer.sparsify` does not execute.
    """
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    steps = [stage.step for stage in loaded.stages]
    step = steps[0]
    if len(steps) > 1:
        raise _refusal(f"has {len(steps)} stages")
    if not isinstance(step, Prune):
        raise _refusal("has a structured stage")
    if step.kind == "built-in" and step.method not in _METHODS:
        raise _refusal(f"has method {step.method}")
    if step.refit:
        raise _refusal("has refit: true")
    if step.budget not in _BUDGETS:
        raise _refusal(f"has budget {step.budget}")
    return {
        "sparsity": step.sparsity,
        "pattern": step.pattern,
        "scorer": step.method,
        "budget": step.budget,
        "targets": None if step.targets is None else list(step.targets),
        "ignore": None if step.ignore is None else list(step.ignore),
    }


def _refusal(what: str) -> RecipeError:
    return RecipeError(
        f"recipe: {what}, which is not yet executable here. gossamer.sparsify takes one prune"
        f" stage with method {' or '.join(_METHODS)} or kind: scorer, budget"
        f" {', '.join(_BUDGETS)}, without refit."
    )
