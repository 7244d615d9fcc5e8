# SPDX-License-Identifier: Apache-2.0
"""`gossamer.attach`: a schedule given as data becomes a controller that moves a model's masks.

Moments become steps, and are checked.
"""

import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from gossamer.errors import InputError, RecipeError
from gossamer.nn.batch import Batch
from gossamer.nn.surgery import unchanged_on_error
from gossamer.patterns import Pattern, parse_pattern
from gossamer.pruning.schedules import (
    Controller,
    OptimizerEntries,
    Run,
    Window,
    default_replicas,
    release_layers,
    take_layers,
)
from gossamer.pruning.schedules import Schedule as MaskSchedule
from gossamer.pruning.schedules.early import (
    BeforeTraining,
    EarlyBird,
    EarlyBirdChannels,
    EarlyBirdUnits,
    Random,
    Shuffled,
)
from gossamer.pruning.schedules.magnitude import AcDc, Gradual, Iterative, OneShot, phases
from gossamer.pruning.schedules.moving import DYNAMIC, TopKast
from gossamer.recipes import Recipe, load_recipe, make_recipe
from gossamer.recipes.faults import RecipeFaults
from gossamer.recipes.stages import Train
from gossamer.recipes.stages.schedules import (
    SCHEDULES,
    IterativeSettings,
    ScheduleSettings,
    WindowSettings,
    step_of,
)


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
        recipe: a mapping with a `kind`, see docs/reference/schedules.md; or a recipe, its file or
            built-in name, whose one train stage has a schedule.
        optimizer: trains the model.
        total_steps: optimizer steps of the whole run.
        data: batches, for snip, grasp and synflow; and for early_bird with coupled channels, which
            looks at the first tensor of the first one.
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
    batches = None if data is None else list(data)
    example = Batch(batches[0]).first_tensor() if batches else None
    given = {"data": batches, "loss": loss, "example": example}
    made = _build(schedule, pattern, total_steps, given)
    entries = OptimizerEntries(model, optimizer, made.grows)
    settings = {**schedule.model_dump(mode="json"), "total_steps": total_steps}
    with unchanged_on_error(model, optimizer):
        layers = take_layers(
            model, pattern, schedule.targets, schedule.ignore, holds=made.kind == "reopen"
        )
        run = Run(model, layers, pattern, entries, total_steps, replicas, shards)
        try:
            return Controller(run, made, settings)
        except BaseException:
            release_layers(layers)
            raise


def check_after(schedule: Any, total_steps: int, done: int) -> None:
    """Raise InputError if a schedule would move masks before `done` steps are over."""
    first = schedule.first_step(total_steps)
    if first <= done:
        later = sorted(kind for kind, made in SCHEDULES.items() if made.begins)
        raise InputError(
            f"schedule {schedule.kind}: masks would move from step {first} on, and it has its model"
            f" only after step {done}. Let it begin later; {', '.join(later)} can."
        )


def read_schedule(recipe: Any) -> Any:
    """The schedule in what users give, checked; RecipeError with all faults otherwise."""
    if isinstance(recipe, ScheduleSettings):
        return recipe
    if isinstance(recipe, Mapping):
        return _validated(recipe)
    if isinstance(recipe, str | os.PathLike):
        recipe = load_recipe(recipe)
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            "attach: expected a schedule as a mapping such as {'kind': 'gradual', 'sparsity': 0.9},"
            f" got {type(recipe).__name__}."
        )
    found = recipe.steps_of(Train)
    if len(found) != 1 or found[0].schedule is None:
        raise RecipeError(
            f"attach: expected a recipe with one train stage that has a schedule, this one has"
            f" {len(found)} train stage(s){' without a schedule' if len(found) == 1 else ''}."
            " Name one such as 'train-gradual', or give the schedule as a mapping."
        )
    return found[0].schedule


def _validated(data: Mapping[str, Any]) -> Any:
    """The schedule of a train stage that says nothing else."""
    stage = {"task": "images", "epochs": 1.0, "schedule": dict(data)}
    try:
        recipe = make_recipe({"gossamer": 1, "stages": [{"train": stage}]}, "attach")
    except RecipeFaults as error:
        raise RecipeFaults(
            replace(fault, path=fault.path.removeprefix("stages[0].train."))
            for fault in error.faults
        ) from error
    return recipe.steps_of(Train)[0].schedule


def _build(data: Any, pattern: Pattern, total_steps: int, given: Mapping[str, Any]) -> MaskSchedule:
    """The schedule for a run of `total_steps`; InputError if it does not fit in.

    Its arguments are the settings of the same names, and what `_arguments` makes of them.
    """
    density = pattern.resolve_density(None if data.sparsity is None else 1.0 - data.sparsity)
    schedule: Any = _SCHEDULES[data.kind]
    if getattr(data, "shuffle_within_layer", False):
        schedule = Shuffled
    elif getattr(data, "form", "weights") != "weights":
        schedule = EarlyBirdChannels if data.form == "channels" else EarlyBirdUnits
    known: dict[str, Any] = {"temperature": 1.0, **dict(data), **given}
    known |= _arguments(data, density, total_steps)
    wanted = inspect.signature(schedule).parameters
    made: MaskSchedule = schedule(**{name: known[name] for name in known if name in wanted})
    return made


def one_training(data: IterativeSettings, total: int) -> tuple[int, int]:
    """Steps of one training, and the step it goes back to, in a run of `total` steps."""
    rounds, back = data.rounds, 0 if data.rewind == "init" else data.to
    # total = length + rounds * (length - to), with `to` in steps or as a fraction of length.
    if isinstance(back, int):
        return (total + rounds * back) // (rounds + 1), back
    length = round(total / (1 + rounds * (1 - back)))
    return length, round(back * length)


def _arguments(data: Any, density: float, total: int) -> dict[str, Any]:
    """What a schedule takes beside the settings of the same names."""
    found: dict[str, Any] = {"density": density}
    if data.kind == "oneshot":
        found["at"] = _moment(data, "at", total)
    elif data.kind == "gradual":
        found |= {"initial_density": 1.0 - data.initial_sparsity, "regrow": data.allow_regrow}
        if found["initial_density"] < density:
            raise InputError(
                f"schedule gradual: initial_sparsity {data.initial_sparsity:g} is above the"
                f" {1 - density:g} of the pattern; a schedule never goes backwards."
            )
    elif data.kind == "iterative":
        length, to = one_training(data, total)
        if length < 1 or to >= length:
            raise InputError(
                f"schedule iterative: {data.rounds} rounds that go back to step {to} do not fit"
                f" into {total} steps: one training would last {length}. Give more total_steps,"
                " fewer rounds, or an earlier `to`."
            )
        found |= {"to": to, "length": length}
    elif data.kind == "acdc":
        begin, last_dense, end = _moments(data, total, "begin", "last_dense", "end")
        found["changes"] = phases(begin, max(1, _moment(data, "phase", total)), last_dense, end)
    if isinstance(data, WindowSettings):
        begin, end = _moments(data, total, "begin", "end")
        found["window"] = Window(begin, end, max(1, step_of(data.every, total)))
    return found


_SCHEDULES: dict[str, type[MaskSchedule]] = {
    "oneshot": OneShot,
    "gradual": Gradual,
    "iterative": Iterative,
    "random": Random,
    "snip": BeforeTraining,
    "grasp": BeforeTraining,
    "synflow": BeforeTraining,
    **DYNAMIC,
    "topkast": TopKast,
    "acdc": AcDc,
    "early_bird": EarlyBird,
}


def _moment(data: Any, name: str, total: int) -> int:
    step = step_of(getattr(data, name), total)
    if step > total:
        raise InputError(
            f"schedule {data.kind}: {name} is step {step}, past the {total} steps of the run. Give"
            f" the total_steps of the whole run, or write a fraction such as {name}: 0.7."
        )
    return step


def _moments(data: Any, total: int, *names: str) -> list[int]:
    """The steps of several moments, which must be in order."""
    steps = [_moment(data, name, total) for name in names]
    for (early, first), (late, second) in itertools.pairwise(zip(names, steps, strict=True)):
        if first > second:
            raise InputError(
                f"schedule {data.kind}: {late} is step {second}, before {early}, step {first};"
                " a schedule never goes backwards."
            )
    return steps
