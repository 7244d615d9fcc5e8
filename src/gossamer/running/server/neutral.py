# SPDX-License-Identifier: Apache-2.0
"""Fields that clients send out of habit: taken where they ask for nothing, else refused.

Clients of OpenAI's interface send optional fields with null or with the value that is the default.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

# Who asks, or what for. It is not read and changes no answer.
Label = Annotated[str, Field(max_length=512)] | None


def only(*values: Any, why: str) -> BeforeValidator:
    """Take null and `values`; refuse others, since `why`."""
    allowed = " or ".join(["null", *map(json.dumps, values)])

    def check(value: Any) -> None:
        if value is not None and not any(_same(value, other) for other in values):
            raise ValueError(f"{why}; expected {allowed}, got {ascii(value)[:60]}")

    return BeforeValidator(check)


def at_most(count: int) -> Callable[[Any], Any]:
    """Refuse an object with more fields, before each of them is complained about."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"has {len(value)} fields; expected at most {count}")
        return value

    return check


def null_is(default: Any) -> BeforeValidator:
    """Take null for `default`."""
    return BeforeValidator(lambda value: default if value is None else value)


def _same(value: Any, other: Any) -> bool:
    """Equal, and no boolean for a number."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
