# SPDX-License-Identifier: Apache-2.0
"""The field of a recipe that names modules: classes, globs, `re:` expressions."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def as_list(value: Any) -> Any:
    """One rule may stand without brackets; YAML lists become tuples."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Rules = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1),
    BeforeValidator(as_list),
]
