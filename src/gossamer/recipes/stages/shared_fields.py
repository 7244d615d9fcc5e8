# SPDX-License-Identifier: Apache-2.0
"""Fields that several kinds of stages have: names of modules, patterns."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from gossamer.errors import PatternError
from gossamer.recipes.stages.prune_rules import read_pattern


def as_list(value: Any) -> Any:
    """One rule may stand without brackets; YAML lists become tuples."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _canonical(text: str) -> str:
    """Equal patterns get equal text; rules over several fields say what is wrong with others."""
    try:
        return read_pattern(text).text
    except PatternError:
        return text


# Classes, globs, `re:` expressions.
Rules = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1),
    BeforeValidator(as_list),
]
PatternName = Annotated[str, Field(max_length=100), AfterValidator(_canonical)]
