# SPDX-License-Identifier: Apache-2.0
"""`gossamer.attach`: a schedule given as data becomes a controller that moves a model's masks."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import nn

from gossamer.errors import InputError, RecipeError
from gossamer.nn import unchanged_on_error
from gossamer.patterns import parse_pattern
from gossamer.pruning.schedules.controller import Controller
from gossamer.pruning.schedules.layers import release_layers, take_layers
from gossamer.pruning.schedules.optimizer_entries import OptimizerEntries
from gossamer.pruning.schedules.run import Run, default_replicas
from gossamer.recipes.faults import near, show
from gossamer.recipes.loader import load_recipe
from gossamer.recipes.schema import Recipe
from gossamer.recipes.stages.schedules import SCHEDULES, Schedule, ScheduleSettings
from gossamer.recipes.stages.train import Train
from gossamer.runs.schedule_builders import build

_ADAPTER: TypeAdapter[Any] = TypeAdapter(Schedule)


def attach(
    model: nn.Module,
    recipe: Mapping[str, Any] | BaseModel | str | os.PathLike[str],
    optimizer: torch.optim.Optimizer,
    *,
    total_steps: int,
    data: Iterable[Any] | None = None,
    loss: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    replicas: Any = None,
    shards: Any = None,
) -> Controller:
    """Let a schedule move the masks of `model` while your own loop trains it.

    Layers become masked in place and keep their Parameters, so the optimizer needs no change. Call
    `step()` of the result after every optimizer.step(). An error leaves model and optimizer as they
    were.

    Example:
        >>> ctl = gossamer.attach(model, {"kind": "rigl", "sparsity": 0.9}, optimizer,
        ...                       total_steps=1000)
        >>> ctl.step()

    Args:
        model: any module; not wrapped in DistributedDataParallel yet.
        recipe: a mapping with a `kind`, see docs/schedules.md; or a recipe, its file or built-in
            name, whose one train stage has a schedule.
        optimizer: trains the model.
        total_steps: optimizer steps of the whole run.
        data: batches, for snip, grasp and synflow.
        loss: loss(model, batch) -> a tensor with one number, for snip and grasp.
        replicas: process group whose ranks hold the same weights; all ranks if left out and there
            are several and no shards.
        shards: process group whose ranks hold other layers of the same model.
    """
    schedule = read_schedule(recipe)
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1:
        raise InputError(
            f"total_steps: expected a whole number of at least 1, got {total_steps!r}."
        )
    pattern = parse_pattern(schedule.pattern)
    if replicas is None and shards is None:
        replicas = default_replicas()
    made = build(schedule, pattern, total_steps, None if data is None else list(data), loss)
    entries = OptimizerEntries(model, optimizer, made.grows)
    settings = {**schedule.model_dump(mode="json"), "total_steps": total_steps}
    with unchanged_on_error(model, optimizer):
        layers = take_layers(model, pattern, schedule.targets, schedule.ignore)
        run = Run(model, layers, pattern, entries, total_steps, replicas, shards)
        try:
            return Controller(run, made, settings)
        except BaseException:
            release_layers(layers)
            raise


def read_schedule(recipe: Any) -> Any:
    """The schedule in what users give, checked; RecipeError with all faults otherwise."""
    if isinstance(recipe, ScheduleSettings):
        return recipe
    if isinstance(recipe, Mapping):
        return _validated(recipe)
    if isinstance(recipe, str | os.PathLike):
        recipe = load_recipe(recipe)
    if isinstance(recipe, Recipe):
        return _schedule_of(recipe)
    raise RecipeError(
        f"attach: expected a schedule as a mapping such as {{'kind': 'gradual', 'sparsity': 0.9}},"
        f" got {type(recipe).__name__}."
    )


def _schedule_of(recipe: Recipe) -> Any:
    found = recipe.steps_of(Train)
    if len(found) != 1 or found[0].schedule is None:
        raise RecipeError(
            f"attach: expected a recipe with one train stage that has a schedule, this one has"
            f" {len(found)} train stage(s){' without a schedule' if len(found) == 1 else ''}."
            " Name one such as 'train-gradual', or give the schedule as a mapping."
        )
    return found[0].schedule


def _validated(data: Mapping[str, Any]) -> Any:
    kind, kinds = data.get("kind"), list(SCHEDULES)
    if kind not in kinds:
        what = "is missing" if kind is None else f"unknown kind {show(kind)}"
        raise RecipeError(
            f"schedule: kind: {what}.{near(kind, kinds)} Expected one of {', '.join(kinds)}."
        )
    try:
        return _ADAPTER.validate_python(dict(data))
    except ValidationError as error:
        known = tuple(SCHEDULES[kind].model_fields)
        lines = [_words(found, known) for found in error.errors()]
        raise RecipeError("\n".join(f"schedule {kind}: {line}" for line in lines)) from error


def _words(found: Any, known: tuple[str, ...]) -> str:
    place = ".".join(str(part) for part in found["loc"][1:])
    if found["type"] == "extra_forbidden":
        return f"unknown key {show(place)}.{near(place, known)} Expected one of {', '.join(known)}."
    text = str(found["msg"]).removeprefix("Value error, ")
    return text if not place else f"{place}: {text}, got {show(found['input'])}."
