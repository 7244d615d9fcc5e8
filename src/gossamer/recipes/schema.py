# SPDX-License-Identifier: Apache-2.0
"""What a recipe says, as data: frozen, closed to unknown keys, free of torch.

A recipe describes; `calibration` and `stages` hold everything that decides the result. `Stage` is
the table of stages: wording, JSON schema and executor are derived from its fields.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gossamer.recipes.base import Samples, Seed, Settings, as_list, whole_number
from gossamer.recipes.stages import (
    Prune,
    Recover,
    Relufy,
    Round,
    StageSettings,
    Structured,
    Tokens,
    Train,
)
from gossamer.recipes.stages.attention import Attention
from gossamer.recipes.stages.channels import Channels
from gossamer.recipes.stages.mixtures import FewerExperts, Moefy, Upcycle
from gossamer.recipes.stages.schedules import ScheduleSettings

SCHEMA_VERSION = 1
MAX_STAGES = 32
AnyStage = TypeVar("AnyStage", bound=StageSettings)


def _variable(value: Any) -> Any:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise PydanticCustomError("variable_type", "expected a number, text, true, false or null")


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=64)]
Variable = Annotated[Any, BeforeValidator(_variable)]


class Calibration(Settings):
    """How much of the data is used."""

    samples: Samples = 64
    """Windows drawn from the data."""
    tokens: Samples = 512
    """Length of a window in tokens."""
    seed: Seed = 0
    """Of the draw; the same seed, the same windows."""


class Stage(Settings):
    """One step; exactly one of its keys is given."""

    prune: Prune | None = None
    structured: Structured | None = None
    channels: Channels | None = None
    recover: Recover | None = None
    tokens: Tokens | None = None
    attention: Attention | None = None
    upcycle: Upcycle | None = None
    moefy: Moefy | None = None
    fewer_experts: FewerExperts | None = None
    relufy: Relufy | None = None
    round: Round | None = None
    train: Train | None = None

    @model_validator(mode="after")
    def _one(self) -> "Stage":
        if len(self._given()) != 1:
            raise ValueError(ONE_STEP)
        return self

    @property
    def step(self) -> StageSettings:
        """What the stage does."""
        return self._given()[0]

    def _given(self) -> list[StageSettings]:
        return [step for _, step in self if step is not None]


_NAMES = list(Stage.model_fields)
ONE_STEP = f"a stage is one of {', '.join(_NAMES[:-1])} and {_NAMES[-1]}"


class Recipe(Settings):
    """A whole recipe, variables substituted."""

    gossamer: Annotated[Literal[1], BeforeValidator(whole_number)]
    """Version of this schema."""
    description: Annotated[str, Field(max_length=1000)] = ""
    """One line for `gossamer recipe list`."""
    variables: dict[VariableName, Variable] = Field(default_factory=dict)
    """Values for ${name} elsewhere; --set name=value changes one."""
    calibration: Calibration = Calibration()
    stages: Annotated[tuple[Stage, ...], BeforeValidator(as_list)] = Field(
        min_length=1, max_length=MAX_STAGES
    )
    """What is done, in this order."""

    @property
    def needs_data(self) -> bool:
        """Whether calibration data must be given."""
        return any(stage.step.needs_data for stage in self.stages)

    @property
    def counts_ids(self) -> bool:
        """Whether all of the data must be seen: how often ids of tables occur."""
        return any(step.needs_data for step in self.steps_of(Round))

    def steps_of(self, kind: type[AnyStage]) -> list[AnyStage]:
        """What the stages of one kind say, such as `recipe.steps_of(Recover)`."""
        return [stage.step for stage in self.stages if isinstance(stage.step, kind)]


def _sections(model: type[Settings]) -> dict[str, type[Settings]]:
    found: dict[str, type[Settings]] = {}
    for name, info in model.model_fields.items():
        for inner in _models_in(info.annotation):
            is_schedule = issubclass(inner, ScheduleSettings)
            key = inner.model_fields["kind"].default if is_schedule else name
            found |= {key: inner, **_sections(inner)}
    return found


def _models_in(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


# Every section that a recipe may have, by the name of its field; schedules by their kind.
SECTIONS = _sections(Recipe)
