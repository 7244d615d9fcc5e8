# SPDX-License-Identifier: Apache-2.0
"""What a recipe says, as data: frozen, closed to unknown keys, free of torch.

A recipe describes; `calibration` and `stages` hold everything that decides the result.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gossamer.recipes.stages.prune_rules import default_settings, prune_faults
from gossamer.recipes.stages.recover import Recover
from gossamer.recipes.stages.relufy import Relufy
from gossamer.recipes.stages.round import Round
from gossamer.recipes.stages.shared_fields import PatternName, Rules, as_list
from gossamer.recipes.stages.tokens import Tokens
from gossamer.recipes.stages.train import Train

SCHEMA_VERSION: Final = 1
MAX_STAGES: Final = 32
ONE_STEP: Final = "a stage is one of prune, structured, recover, tokens, relufy, round and train"

Budget = Literal["uniform", "global", "erk", "half-erk", "owl", "sensitivity"]
Cost = Literal["macs", "parameters", "latency"]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=64)]


def _whole(value: Any) -> Any:
    """Literals compare by ==, and to Python true is 1 and 8.0 is 8."""
    if isinstance(value, bool | float):
        raise PydanticCustomError("int_type", "expected a whole number")
    return value


def _variable(value: Any) -> Any:
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise PydanticCustomError("variable_type", "expected a number, text, true, false or null")


Variable = Annotated[Any, BeforeValidator(_variable)]
Text = Annotated[str, Field(max_length=1000)]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Calibration(_Data):
    """How much of the data is used."""

    samples: int = Field(default=64, ge=1, le=1_000_000, description="Windows drawn from the data.")
    tokens: int = Field(
        default=512, ge=1, le=1_000_000, description="Length of a window in tokens."
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Of the draw; the same seed, the same windows."
    )


class Prune(_Data):
    """Zeros in weights. A setting that the method does not have is None."""

    method: Annotated[str, Field(max_length=100)] = Field(
        description="What chooses the zeros, and the kept weights where it changes them."
    )
    kind: Literal["built-in", "scorer"] = Field(
        default="built-in",
        description="scorer: method is a name given to gossamer.register.scorer.",
    )
    pattern: PatternName = Field(
        default="unstructured",
        description="Which zeros are legal: unstructured, 2:4, 64:2:8, block:4x4.",
    )
    sparsity: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="Fraction of zeros; left out where the pattern fixes it.",
    )
    budget: Budget = Field(
        default="uniform", description="How the sparsity is shared among layers."
    )
    targets: Rules | None = Field(
        default=None,
        description="Classes, globs or re:... to prune; every Linear and Conv2d if left out.",
    )
    ignore: Rules | None = Field(
        default=None, description="Classes, globs or re:... to leave alone."
    )
    damping: float | None = Field(
        default=None,
        gt=0.0,
        le=10.0,
        description="Added to the diagonal of the Hessian, as a fraction of its mean.",
    )
    block: int | None = Field(
        default=None, ge=1, le=65536, description="Columns that are updated together, lazily."
    )
    quantise: Annotated[Literal[4, 8], BeforeValidator(_whole)] | None = Field(
        default=None,
        description="Bits of the kept weights, rounded in the same pass; null: not at all.",
    )
    refit: bool = Field(
        default=False,
        description="Exact least squares of the kept weights after the mask is fixed.",
    )
    match: Literal["pruned", "dense"] | None = Field(
        default=None,
        description="Whose outputs are reconstructed from the pruned model's inputs.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Settings the method has and nobody gave get their defaults."""
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        return {**data, **default_settings(data), **given}

    @model_validator(mode="after")
    def _check(self) -> "Prune":
        raw = {name: getattr(self, name) for name in self.model_fields_set}
        found = [f"{field}: {message}" for field, message in prune_faults(raw)]
        if found:
            raise ValueError(" ".join(found))
        return self


class Structured(_Data):
    """Whole heads and filters, found by Fisher scores, then taken out: a smaller dense model."""

    budget: float = Field(gt=0.0, le=1.0, description="Fraction of `cost` that may be left.")
    cost: Cost = Field(
        default="macs", description="What the budget counts; latency is measured here."
    )
    fisher: Literal["batch", "sample"] = Field(
        default="batch", description="Gradients squared per batch, or per sample."
    )
    rearrange: bool = Field(
        default=True, description="Swap units by the block-diagonal Fisher matrix."
    )
    tune: bool = Field(
        default=True, description="Scale kept units to reconstruct the dense outputs."
    )
    refit: bool = Field(default=True, description="Then refit output weights by least squares.")
    multiple: int = Field(
        default=1, ge=1, le=4096, description="Kept filters are a multiple of it."
    )
    min_units: int = Field(
        default=1, ge=0, le=65536, description="Heads or filters a layer keeps at least."
    )
    rounds: int = Field(
        default=1, ge=1, le=32, description="Geometric steps to the budget, gradients anew in each."
    )
    hold_out: float = Field(
        default=0.25,
        ge=0.0,
        le=0.5,
        description="Part of the batches whose loss decides whether a stage is kept; 0: all are.",
    )


Step = Prune | Structured | Recover | Tokens | Relufy | Round | Train


class Stage(_Data):
    """One step; exactly one of its keys is given."""

    prune: Prune | None = None
    structured: Structured | None = None
    recover: Recover | None = None
    tokens: Tokens | None = None
    relufy: Relufy | None = None
    round: Round | None = None
    train: Train | None = None

    @model_validator(mode="after")
    def _one(self) -> "Stage":
        if len(self._given()) != 1:
            raise ValueError(ONE_STEP)
        return self

    @property
    def step(self) -> Step:
        """What the stage does."""
        return self._given()[0]

    def _given(self) -> list[Step]:
        steps = (getattr(self, name) for name in type(self).model_fields)
        return [step for step in steps if step is not None]


class Recipe(_Data):
    """A whole recipe, variables substituted."""

    gossamer: Annotated[Literal[1], BeforeValidator(_whole)] = Field(
        description="Version of this schema."
    )
    description: Text = Field(default="", description="One line for `gossamer recipe list`.")
    variables: dict[VariableName, Variable] = Field(
        default_factory=dict,
        description="Values for ${name} elsewhere; --set name=value changes one.",
    )
    calibration: Calibration = Calibration()
    stages: Annotated[tuple[Stage, ...], BeforeValidator(as_list)] = Field(
        min_length=1, max_length=MAX_STAGES, description="What is done, in this order."
    )

    @property
    def needs_data(self) -> bool:
        """Whether calibration data must be given."""
        return any(_needs_data(stage.step) for stage in self.stages)


_NEED_NO_DATA: Final = ("magnitude", "random")
_BUDGETS_WITH_DATA: Final = ("owl", "sensitivity")


def _needs_data(step: Step) -> bool:
    if not isinstance(step, Prune):
        return not isinstance(step, Round)
    # A registered scorer says itself what it needs, when it runs.
    known = step.kind == "built-in" and step.method not in _NEED_NO_DATA
    return known or step.refit or step.budget in _BUDGETS_WITH_DATA
