# SPDX-License-Identifier: Apache-2.0
"""What an `attention` stage says: which pairs the attention layers of a model compute."""

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from gossamer.errors import PatternError
from gossamer.patterns.attention import parse_attention
from gossamer.recipes.base import Found, Ignored, Raw, StageSettings
from gossamer.recipes.phrases import show

__all__ = ["Attention"]


def _canonical(text: str) -> str:
    """Equal patterns get equal text; `faults` says what is wrong with others."""
    try:
        return str(parse_attention(text))
    except PatternError:
        return text


class Attention(StageSettings):
    """Attention layers attend to the pairs of a pattern only; training should follow."""

    # Weights stay, times do not: the dense model is kept to be timed.
    changes_shapes: ClassVar = True

    pattern: Annotated[str, Field(max_length=1000), AfterValidator(_canonical)]
    """Which pairs: window:512+global:64, bigbird:block=64, strided:128; see Long sequences."""
    ignore: Ignored = None

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """A pattern must be known, and rules must be readable."""
        text, rules = raw.get("pattern"), raw.get("ignore")
        if isinstance(text, str):
            try:
                parse_attention(text)
            except PatternError as error:
                yield "pattern", str(error).removeprefix(f"attention pattern {text!r}, ")
        for rule in (rules,) if isinstance(rules, str) else rules or ():
            if isinstance(rule, str) and rule.startswith("re:"):
                try:
                    re.compile(rule.removeprefix("re:"))
                except (re.error, OverflowError, RecursionError) as error:
                    yield "ignore", f"{show(rule)} is not a regular expression: {error}."

    @property
    def needs_data(self) -> bool:
        """Patterns look at none."""
        return False
