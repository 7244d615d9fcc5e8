# SPDX-License-Identifier: Apache-2.0
"""When and how a model grows while it trains, as data: closed to unknown keys, free of torch."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from gossamer.recipes.base import Found, Raw, Seed, Settings
from gossamer.recipes.stages.schedules import SCHEDULES, Moment, step_of


class GrowSettings(Settings):
    """One growth: exactly one of `at` and `slope` says when."""

    at: Moment | None = Field(default=None, description="When: a step, or a fraction of the run.")
    slope: float | None = Field(
        default=None,
        ge=-1.0,
        le=0.0,
        description="When: once d log(loss) / d log(compute) of the evaluations is above this.",
    )
    width: int = Field(default=1, ge=1, le=64, description="Copies of stream, heads and ffn.")
    depth: int = Field(default=1, ge=1, le=64, description="How many times as many blocks.")
    layers: int | None = Field(
        default=None, ge=0, le=1024, description="Number of blocks, instead of depth."
    )
    ffn: int | None = Field(
        default=None, ge=1, le=64, description="Copies of the feed-forward part; null: as width."
    )
    heads: int | None = Field(
        default=None, ge=1, le=64, description="Copies of the heads; null: as width."
    )
    kv_heads: int = Field(
        default=1, ge=1, le=64, description="How often key and value heads are repeated."
    )
    experts: int = Field(
        default=1, ge=1, le=64, description="Copies of every expert of a mixture; alone."
    )
    mode: Literal["out0", "ln0", "stack", "random"] = Field(
        default="out0",
        description="New blocks: add nothing yet (out0, ln0), plain copies, fresh ones.",
    )
    where: Literal["after", "top", "bottom"] | None = Field(
        default=None, description="New blocks: after their source, on top, at the bottom."
    )
    blocks: Literal["diagonal", "uniform"] = Field(
        default="diagonal", description="Copies begin by themselves, or all read all."
    )
    symmetry: Literal["noise", "dropout", "none"] = Field(
        default="noise", description="What makes copies differ."
    )
    sigma: float = Field(default=0.1, ge=0.0, le=10.0, description="Of the noise.")
    opened: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Share of the weights between copies that may become nonzero.",
    )
    state: Literal["grow", "old", "reset"] = Field(
        default="grow", description="Optimizer state: grown, not of new blocks, none."
    )
    mup: bool = Field(default=False, description="Hidden matrices learn more slowly by width.")
    rewarm: Moment = Field(
        default=0.01, description="The learning rate rises again over so many steps."
    )
    rho: float | None = Field(
        default=None,
        gt=0.0,
        le=100.0,
        description="The learning rate's clock goes back to step / rho; null: it goes on.",
    )
    lr_factor: float = Field(
        default=1.0,
        gt=0.0,
        le=100.0,
        description="Times the learning rate from then on; larger models want a smaller one.",
    )
    seed: Seed = Field(default=0, description="Of everything drawn.")


def grow_faults(train: Raw) -> Found:
    """(dotted field, message) of growths that do not fit the run."""
    growths = train.get("grow")
    if not isinstance(growths, list | tuple) or not growths:
        return
    yield from _moments(growths, train.get("steps"))
    yield from _schedule_faults(train, [g for g in growths if isinstance(g, Mapping)])
    model = train.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    if name in ("mlp", "cnn", "squeezenet", "shift-net"):
        yield "grow", f"{name} has no residual stream that could grow; gpt and encoder have."


def _schedule_faults(train: Raw, growths: list[Raw]) -> Found:
    """First the model has its last size, then a schedule moves its masks."""
    schedule: Any = train.get("schedule")
    kind = schedule.get("kind") if isinstance(schedule, Mapping) else None
    if not growths or not isinstance(kind, str) or kind not in SCHEDULES:
        return
    name, opened = SCHEDULES[kind].begins, [g.get("opened", 1.0) for g in growths]
    leaves_zeros = any(isinstance(share, int | float) and share < 1 for share in opened)
    if leaves_zeros and kind != "reopen":
        yield "schedule.kind", f"opened leaves masks, which {kind} would undo; reopen goes on."
    if kind == "reopen" and not leaves_zeros and train.get("model") is not None:
        yield "schedule.kind", "reopen needs the zeros that a growth with opened below 1 leaves."
    last, steps = growths[-1].get("at"), train.get("steps")
    if last is None:
        yield "schedule", "a growth by slope has no moment that a schedule could follow; say at."
        return
    if not name:
        yield (
            "schedule.kind",
            f"{kind} moves masks from the first step on, before the model grows; let it grow"
            " first, then use reopen, gradual, oneshot, acdc or early_bird.",
        )
        return
    first = schedule.get(name, SCHEDULES[kind].model_fields[name].default)
    if type(steps) is int and isinstance(first, int | float) and isinstance(last, int | float):
        first, last = step_of(first, steps), step_of(last, steps)
    if type(first) is type(last) and first <= last:
        yield (
            f"schedule.{name}",
            f"{first} is not after the growth at {last}; masks move once the model has its last"
            " size.",
        )


def _moments(growths: Any, steps: Any) -> Iterator[tuple[str, str]]:
    last = -1.0
    for index, growth in enumerate(growths):
        if not isinstance(growth, Mapping):
            continue
        where = f"grow[{index}]"
        given = [name for name in ("at", "slope") if growth.get(name) is not None]
        if len(given) != 1:
            yield f"{where}.at", "say when with at, or with slope: exactly one of them."
        at = growth.get("at")
        if type(steps) is not int or not isinstance(at, int | float):
            continue
        step = at if isinstance(at, int) else at * steps
        if step >= steps:
            yield f"{where}.at", f"step {step:g} leaves nothing of a run of {steps} steps."
        if step < last:
            yield f"{where}.at", f"step {step:g} lies before the growth at step {last:g}."
        last = step
