# SPDX-License-Identifier: Apache-2.0
"""What parts of a recipe have in common: base classes, fields of several stages, patterns.

Rules over several fields look at the raw mapping of a file, so that they are told together with the
faults of single fields.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gossamer.errors import PatternError
from gossamer.patterns.syntax import LEGAL_FORMS, PatternText, form_of, read_builtin
from gossamer.recipes.phrases import near, plain, show

__all__ = ["Settings", "as_list", "whole_number"]

MAX_STEPS = 2**40
# A section as a file has it, before it is checked.
Raw = Mapping[str, Any]
# (field, what is wrong with it)
Found = Iterator[tuple[str, str]]


class Settings(BaseModel):
    """A section of a recipe: frozen, closed to unknown keys, and of exact types.

    `fractions` names the fields that people may mistake for percentages, with their legal range.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )
    fractions: ClassVar[Mapping[str, str]] = {}


class StageSettings(Settings):
    """What one stage of a recipe says; a class per stage, listed in `schema.Stage`.

    `needs_teacher`: it trains, with the dense model as teacher. `changes_shapes`: what comes out is
    compared with a copy of the model as it was.
    """

    needs_teacher: ClassVar[bool] = False
    changes_shapes: ClassVar[bool] = False

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """(field, message) of settings that do not go together, on the raw mapping of a file."""
        return iter(())

    @property
    def needs_data(self) -> bool:
        """Whether calibration data must be given."""
        return True

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_faults(self.faults(self.model_dump(exclude_unset=True)))
        return self


def raise_faults(found: Found) -> None:
    """Raise ValueError with all faults, if there are any."""
    faults = [f"{field}: {message}" for field, message in found]
    if faults:
        raise ValueError(" ".join(faults))


def whole_number(value: Any) -> Any:
    """Literals compare by ==, and to Python true is 1 and 8.0 is 8."""
    if isinstance(value, bool | float):
        raise PydanticCustomError("int_type", "expected a whole number")
    return value


def as_list(value: Any) -> Any:
    """One rule may stand without brackets; YAML lists become tuples."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def read_pattern(text: str) -> PatternText:
    """What a pattern's text says, plug-ins included; PatternError otherwise."""
    found = read_builtin(text)
    if found is not None:
        return found
    # A plug-in can be registered only where this module is loaded; else torch is not needed.
    registry, form = sys.modules.get("gossamer.patterns.text"), form_of(text)
    if registry is not None and form in registry.PATTERNS:
        pattern = registry.parse_pattern(text)
        return PatternText(str(pattern), pattern.fixed_density)
    known = ("unstructured", "nmg", "block")
    raise PatternError(f"unknown pattern {show(text)}.{near(form, known)} Legal: {LEGAL_FORMS}.")


def pattern_faults(raw: Raw) -> Found:
    """(field, message) where pattern, sparsity and budget do not go together."""
    text = raw.get("pattern", "unstructured")
    sparsity: Any = raw.get("sparsity")
    if not isinstance(text, str):
        return
    try:
        pattern = read_pattern(text)
    except PatternError as error:
        yield "pattern", str(error).removeprefix(f"pattern {text!r}: ").removeprefix("pattern ")
        return
    fixed = pattern.fixed_density
    if fixed is None:
        if sparsity is None:
            yield "sparsity", f"is missing; pattern {pattern.text} needs one, such as 0.5."
        return
    is_number = isinstance(sparsity, int | float) and not isinstance(sparsity, bool)
    if is_number and 0 <= sparsity < 1 and abs(1 - sparsity - fixed) > 1e-6:
        yield (
            "sparsity",
            f"pattern {pattern.text} prunes exactly {1 - fixed:g}, got {sparsity}. Leave it out.",
        )
    budget = raw.get("budget", "uniform")
    if isinstance(budget, str) and budget != "uniform":
        yield (
            "budget",
            f"{plain(budget)} gives each layer its own sparsity, but pattern {pattern.text}"
            f" fixes it at {1 - fixed:g}. Use uniform, or a pattern such as unstructured.",
        )


def _canonical(text: str) -> str:
    """Equal patterns get equal text; rules over several fields say what is wrong with others."""
    try:
        return read_pattern(text).text
    except PatternError:
        return text


PatternName = Annotated[str, Field(max_length=100), AfterValidator(_canonical)]
# Classes, globs, `re:` expressions.
Rules = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1),
    BeforeValidator(as_list),
]
Targets = Annotated[
    Rules | None,
    Field(description="Classes, globs or re:... to prune; every Linear and Conv2d if left out."),
]
Ignored = Annotated[Rules | None, Field(description="Classes, globs or re:... to leave alone.")]
Frozen = Annotated[
    Rules | None, Field(description="Classes, globs or re:... whose parameters are not trained.")
]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
# Steps of an optimizer, and how many samples one of them sees.
Steps = Annotated[int, Field(ge=0, le=100_000_000)]
Samples = Annotated[int, Field(ge=1, le=1_000_000)]
# Numbers as several stages have them: a part of a whole, one that is never all of it, one that is
# never nothing.
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
# Rates, temperatures; decay of weights.
Positive = Annotated[float, Field(gt=0.0, le=1e3)]
Decay = Annotated[float, Field(ge=0.0, le=10.0)]
# How often; features, columns or tokens; samples of a step; steps of a run.
Count = Annotated[int, Field(ge=1, le=10_000)]
Size = Annotated[int, Field(ge=1, le=65536)]
Batch = Annotated[int, Field(ge=1, le=2**20)]
RunSteps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
# A part of a loss.
Weight = Annotated[float, Field(ge=0.0, le=1e6)]
