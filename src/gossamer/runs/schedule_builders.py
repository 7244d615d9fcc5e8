# SPDX-License-Identifier: Apache-2.0
"""From a schedule as data to the object that moves masks: moments become steps, and are checked."""

from collections.abc import Callable
from typing import Any

from gossamer.errors import InputError
from gossamer.patterns import Pattern
from gossamer.pruning.schedules import (
    acdc,
    before_training,
    dynamic,
    early_bird,
    gradual,
    iterative,
)
from gossamer.pruning.schedules import topkast as top
from gossamer.pruning.schedules.base import Schedule
from gossamer.pruning.schedules.moments import Window
from gossamer.recipes.stages import schedules as schema
from gossamer.recipes.stages.schedules import step_of


def build(
    data: Any, pattern: Pattern, total_steps: int, batches: list[Any] | None, loss: Any
) -> Schedule:
    """The schedule for a run of `total_steps`; InputError if it does not fit in."""
    density = pattern.resolve_density(None if data.sparsity is None else 1.0 - data.sparsity)
    if isinstance(data, schema.Snip | schema.Grasp | schema.SynFlow):
        return _before_training(data, density, batches, loss)
    return _MAKERS[type(data)](data, density, total_steps)


def _oneshot(data: schema.OneShot, density: float, total: int) -> Schedule:
    at = _moment(data, "at", total)
    return gradual.OneShot(density=density, budget=data.budget, at=at)


def _gradual(data: schema.Gradual, density: float, total: int) -> Schedule:
    if 1.0 - data.initial_sparsity < density:
        raise InputError(
            f"schedule gradual: initial_sparsity {data.initial_sparsity:g} is above the"
            f" {1 - density:g} of the pattern; a schedule never goes backwards."
        )
    return gradual.Gradual(
        density=density,
        initial_density=1.0 - data.initial_sparsity,
        budget=data.budget,
        window=_window(data, total),
        regrow=data.allow_regrow,
    )


def one_training(data: schema.Iterative, total: int) -> tuple[int, int]:
    """Steps of one training, and the step it goes back to, in a run of `total` steps."""
    rounds, back = data.rounds, 0 if data.rewind == "init" else data.to
    # total = length + rounds * (length - to), with `to` in steps or as a fraction of length.
    if isinstance(back, int):
        return (total + rounds * back) // (rounds + 1), back
    length = round(total / (1 + rounds * (1 - back)))
    return length, round(back * length)


def _iterative(data: schema.Iterative, density: float, total: int) -> Schedule:
    rounds = data.rounds
    length, to = one_training(data, total)
    if length < 1 or to >= length:
        raise InputError(
            f"schedule iterative: {rounds} rounds that go back to step {to} do not fit into"
            f" {total} steps: one training would last {length}. Give more total_steps, fewer"
            " rounds, or an earlier `to`."
        )
    return iterative.Iterative(
        density=density, budget=data.budget, rounds=rounds, rewind=data.rewind, to=to, length=length
    )


def _random(data: schema.Random, density: float, total: int) -> Schedule:
    return before_training.Random(density=density, budget=data.budget, seed=data.seed)


def _before_training(
    data: Any, density: float, batches: list[Any] | None, loss: Callable[..., Any] | None
) -> Schedule:
    made = before_training.Shuffled if data.shuffle_within_layer else before_training.BeforeTraining
    return made(
        kind=data.kind,
        density=density,
        budget=data.budget,
        rounds=data.rounds,
        seed=data.seed,
        temperature=getattr(data, "temperature", 1.0),
        data=batches,
        loss=loss,
    )


def _dynamic(data: schema.SetSchedule | schema.RigL, density: float, total: int) -> Schedule:
    settings: dict[str, Any] = {
        "density": density,
        "budget": data.budget,
        "window": _window(data, total),
        "drop": data.drop,
        "seed": data.seed,
    }
    if isinstance(data, schema.RigL):
        return dynamic.RigL(**settings, gradient_steps=data.gradient_steps)
    return dynamic.SetSchedule(**settings)


def _topkast(data: schema.TopKast, density: float, total: int) -> Schedule:
    return top.TopKast(
        density=density,
        exploration=data.exploration,
        budget=data.budget,
        window=_window(data, total),
        penalty=data.penalty,
    )


def _acdc(data: schema.AcDc, density: float, total: int) -> Schedule:
    begin, last_dense, end = (_moment(data, name, total) for name in ("begin", "last_dense", "end"))
    _in_order(data, ("begin", "last_dense", "end"), (begin, last_dense, end))
    phase = max(1, _moment(data, "phase", total))
    return acdc.AcDc(
        density=density,
        budget=data.budget,
        changes=acdc.phases(begin, phase, last_dense, end),
        reset_momentum=data.reset_momentum,
    )


def _early_bird(data: schema.EarlyBird, density: float, total: int) -> Schedule:
    settings: dict[str, Any] = {
        "density": density,
        "budget": data.budget,
        "window": _window(data, total),
        "distance": data.distance,
        "threshold": data.threshold,
        "history": data.history,
    }
    if data.form == "channels":
        return early_bird.EarlyBirdChannels(**settings, l1=data.l1)
    return early_bird.EarlyBird(**settings)


_MAKERS: dict[type, Callable[[Any, float, int], Schedule]] = {
    schema.OneShot: _oneshot,
    schema.Gradual: _gradual,
    schema.Iterative: _iterative,
    schema.Random: _random,
    schema.SetSchedule: _dynamic,
    schema.RigL: _dynamic,
    schema.TopKast: _topkast,
    schema.AcDc: _acdc,
    schema.EarlyBird: _early_bird,
}


def _window(data: Any, total: int) -> Window:
    begin, end = _moment(data, "begin", total), _moment(data, "end", total)
    _in_order(data, ("begin", "end"), (begin, end))
    return Window(begin, end, max(1, step_of(data.every, total)))


def _moment(data: Any, name: str, total: int) -> int:
    step = step_of(getattr(data, name), total)
    if step > total:
        raise InputError(
            f"schedule {data.kind}: {name} is step {step}, past the {total} steps of the run. Give"
            f" the total_steps of the whole run, or write a fraction such as {name}: 0.7."
        )
    return step


def _in_order(data: Any, names: tuple[str, ...], steps: tuple[int, ...]) -> None:
    for (early, first), (late, second) in zip(
        zip(names, steps, strict=True), list(zip(names, steps, strict=True))[1:], strict=False
    ):
        if first > second:
            raise InputError(
                f"schedule {data.kind}: {late} is step {second}, before {early}, step {first};"
                " a schedule never goes backwards."
            )
