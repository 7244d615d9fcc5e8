# SPDX-License-Identifier: Apache-2.0
"""From a schedule as data to the object that moves masks: moments become steps, and are checked."""

import inspect
import itertools
from collections.abc import Callable
from typing import Any

from gossamer.errors import InputError
from gossamer.patterns import Pattern
from gossamer.pruning.schedules.acdc import AcDc, phases
from gossamer.pruning.schedules.base import Schedule
from gossamer.pruning.schedules.before_training import BeforeTraining, Random, Shuffled
from gossamer.pruning.schedules.dynamic import RigL, SetSchedule
from gossamer.pruning.schedules.early_bird import EarlyBird, EarlyBirdChannels
from gossamer.pruning.schedules.gradual import Gradual, OneShot
from gossamer.pruning.schedules.iterative import Iterative
from gossamer.pruning.schedules.moments import Window
from gossamer.pruning.schedules.topkast import TopKast
from gossamer.recipes.stages.schedules import IterativeSettings, WindowSettings, step_of


def build(
    data: Any, pattern: Pattern, total_steps: int, batches: list[Any] | None, loss: Any
) -> Schedule:
    """The schedule for a run of `total_steps`; InputError if it does not fit in.

    Arguments of the schedule are the settings of the same names, unless its row says otherwise.
    """
    density = pattern.resolve_density(None if data.sparsity is None else 1.0 - data.sparsity)
    choose, adapt = _BUILDERS[data.kind]
    schedule: Callable[..., Schedule] = choose(data)
    known: dict[str, Any] = {"temperature": 1.0, **dict(data), "data": batches, "loss": loss}
    known |= {"density": density, **adapt(data, density, total_steps)}
    if isinstance(data, WindowSettings):
        known["window"] = _window(data, total_steps)
    wanted = inspect.signature(schedule).parameters
    return schedule(**{name: value for name, value in known.items() if name in wanted})


def one_training(data: IterativeSettings, total: int) -> tuple[int, int]:
    """Steps of one training, and the step it goes back to, in a run of `total` steps."""
    rounds, back = data.rounds, 0 if data.rewind == "init" else data.to
    # total = length + rounds * (length - to), with `to` in steps or as a fraction of length.
    if isinstance(back, int):
        return (total + rounds * back) // (rounds + 1), back
    length = round(total / (1 + rounds * (1 - back)))
    return length, round(back * length)


def _same(data: Any, density: float, total: int) -> dict[str, Any]:
    return {}


def _oneshot(data: Any, density: float, total: int) -> dict[str, Any]:
    return {"at": _moment(data, "at", total)}


def _gradual(data: Any, density: float, total: int) -> dict[str, Any]:
    if 1.0 - data.initial_sparsity < density:
        raise InputError(
            f"schedule gradual: initial_sparsity {data.initial_sparsity:g} is above the"
            f" {1 - density:g} of the pattern; a schedule never goes backwards."
        )
    return {"initial_density": 1.0 - data.initial_sparsity, "regrow": data.allow_regrow}


def _iterative(data: Any, density: float, total: int) -> dict[str, Any]:
    length, to = one_training(data, total)
    if length < 1 or to >= length:
        raise InputError(
            f"schedule iterative: {data.rounds} rounds that go back to step {to} do not fit into"
            f" {total} steps: one training would last {length}. Give more total_steps, fewer"
            " rounds, or an earlier `to`."
        )
    return {"to": to, "length": length}


def _acdc(data: Any, density: float, total: int) -> dict[str, Any]:
    begin, last_dense, end = _moments(data, total, "begin", "last_dense", "end")
    phase = max(1, _moment(data, "phase", total))
    return {"changes": phases(begin, phase, last_dense, end)}


def _before_training(data: Any) -> type[Schedule]:
    return Shuffled if data.shuffle_within_layer else BeforeTraining


_Adapt = Callable[[Any, float, int], dict[str, Any]]
# Kind -> the class for its settings, and the arguments that are not settings of the same name.
_BUILDERS: dict[str, tuple[Callable[[Any], Any], _Adapt]] = {
    "oneshot": (lambda data: OneShot, _oneshot),
    "gradual": (lambda data: Gradual, _gradual),
    "iterative": (lambda data: Iterative, _iterative),
    "random": (lambda data: Random, _same),
    "snip": (_before_training, _same),
    "grasp": (_before_training, _same),
    "synflow": (_before_training, _same),
    "set": (lambda data: SetSchedule, _same),
    "rigl": (lambda data: RigL, _same),
    "topkast": (lambda data: TopKast, _same),
    "acdc": (lambda data: AcDc, _acdc),
    "early_bird": (lambda data: EarlyBirdChannels if data.form == "channels" else EarlyBird, _same),
}


def _window(data: WindowSettings, total: int) -> Window:
    begin, end = _moments(data, total, "begin", "end")
    return Window(begin, end, max(1, step_of(data.every, total)))


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
