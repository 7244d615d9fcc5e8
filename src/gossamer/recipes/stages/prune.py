# SPDX-License-Identifier: Apache-2.0
"""What a `prune` stage says: zeros in weights, by a method of `gossamer.method_table`."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from gossamer.method_table import METHOD_SETTINGS, METHODS, methods_with
from gossamer.recipes.base import (
    BelowOne,
    Found,
    Ignored,
    PatternName,
    Raw,
    Size,
    StageSettings,
    Targets,
    as_list,
    pattern_faults,
    whole_number,
)
from gossamer.recipes.phrases import SCHEMA_HINT, near, plain, show

_BUDGETS_WITH_DATA = ("owl", "sensitivity")


class Prune(StageSettings):
    """Zeros in weights. A setting that the method does not have is None."""

    fractions: ClassVar = {"sparsity": "[0, 1)"}

    method: Annotated[str, Field(max_length=100)]
    """What chooses the zeros, and the kept weights where it changes them."""
    kind: Literal["built-in", "scorer"] = "built-in"
    """scorer: method is a name given to gossamer.register.scorer."""
    pattern: PatternName = "unstructured"
    """Which zeros are legal: unstructured, 2:4, 64:2:8, block:4x4."""
    sparsity: BelowOne | None = None
    """Fraction of zeros; left out where the pattern fixes it."""
    budget: Literal["uniform", "global", "erk", "half-erk", "owl", "sensitivity"] = "uniform"
    """How the sparsity is shared among layers."""
    targets: Targets = None
    ignore: Ignored = None
    damping: float | None = Field(default=None, gt=0.0, le=10.0)
    """Added to the diagonal of the Hessian, as a fraction of its mean."""
    block: Size | None = None
    """Columns that are updated together, lazily."""
    quantise: Annotated[Literal[4, 8], BeforeValidator(whole_number)] | None = None
    """Bits of the kept weights, rounded in the same pass; null: not at all."""
    refit: bool = False
    """Exact least squares of the kept weights after the mask is fixed."""
    match: Literal["pruned", "dense"] | None = None
    """Whose outputs are reconstructed from the pruned model's inputs."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Settings the method has and nobody gave get their defaults."""
        if not isinstance(data, dict):
            return data
        own = _settings_of(data)
        return {**data, **{name: own[name] for name in own if data.get(name) is None}}

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """Methods, settings, patterns and rules that do not go together."""
        yield from _method_faults(raw)
        yield from pattern_faults(raw)
        for name in ("targets", "ignore"):
            listed = as_list(raw.get(name))
            for rule in listed if isinstance(listed, tuple) else ():
                if isinstance(rule, str) and rule.startswith("re:"):
                    try:
                        re.compile(rule.removeprefix("re:"))
                    except (re.error, OverflowError, RecursionError) as error:
                        yield name, f"{show(rule)} is not a regular expression: {error}."

    @property
    def needs(self) -> str | None:
        """What the method looks at; None for a registered scorer, which says so when it runs."""
        return METHODS[self.method].needs if self.kind == "built-in" else None

    @property
    def needs_data(self) -> bool:
        """Whether the method, the re-fit or the budget looks at data."""
        looks = self.needs in ("inputs", "gradients")
        return looks or self.refit or self.budget in _BUDGETS_WITH_DATA


def _settings_of(raw: Raw) -> Raw:
    """The settings that belong to the method, with their defaults; `refit: true` brings `match`."""
    method, is_own = raw.get("method"), raw.get("kind", "built-in") == "built-in"
    row = METHODS.get(method) if is_own and isinstance(method, str) else None
    found = {} if row is None else row.settings
    return {**found, "match": "pruned"} if raw.get("refit") is True else found


def _method_faults(raw: Raw) -> Found:
    method, kind = raw.get("method"), raw.get("kind", "built-in")
    if not isinstance(method, str):
        return
    if method == "" and kind == "scorer":
        yield "method", "expected the name of a registered scorer, got ''."
    if kind == "built-in" and method not in METHODS:
        yield (
            "method",
            f"unknown method {show(method)}.{near(method, tuple(METHODS))} Expected one of"
            f" {', '.join(METHODS)}; a registered scorer needs kind: scorer. {SCHEMA_HINT}",
        )
        return  # Which settings it has cannot be known.
    own = _settings_of(raw)
    for name in METHOD_SETTINGS:
        if raw.get(name) is not None and name not in own:
            extra = ", and of any method with refit: true" if name == "match" else ""
            yield (
                name,
                f"{name} is a setting of {_listed(methods_with(name))}{extra}, not of"
                f" {plain(method)}. Remove it.",
            )


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
