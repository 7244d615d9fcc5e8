# SPDX-License-Identifier: Apache-2.0
"""Whether two recipes do the same work: one digest, and a list of what differs.

Name and description of a recipe, and whether a value came from a variable, change nothing.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gossamer.io.safe_files.documents import canonical_json
from gossamer.recipes.faults import Path, dotted
from gossamer.recipes.schema import Recipe

__all__ = [
    "content_differences",
    "differences",
    "recipe_content",
    "recipe_digest",
]

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Difference:
    """One value that differs; None where a recipe has no such place."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def recipe_content(recipe: Recipe) -> dict[str, Any]:
    """Everything that decides the result, defaults included, as plain JSON data.

    What is None is left out: a field that a later version adds does not change older recipes.
    """
    return recipe.model_dump(mode="json", exclude={"description", "variables"}, exclude_none=True)


def recipe_digest(recipe: Recipe) -> str:
    """SHA-256 of the canonical JSON of `recipe_content`."""
    return hashlib.sha256(canonical_json(recipe_content(recipe))).hexdigest()


def differences(before: Recipe, after: Recipe) -> list[Difference]:
    """What differs, by dotted path; empty exactly if the digests are equal."""
    return content_differences(recipe_content(before), recipe_content(after))


def content_differences(before: Any, after: Any) -> list[Difference]:
    """What differs between two pieces of JSON data."""
    return list(_differ(before, after, ()))


def _differ(before: Any, after: Any, path: Path) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _differ(before.get(key), after.get(key), (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(itertools.zip_longest(before, after)):
            yield from _differ(old, new, (*path, index))
    elif type(before) is not type(after) or before != after:
        yield Difference(dotted(path), before, after)


def _shown(value: Any) -> str:
    """A value for people: the first digits of a digest are enough to compare."""
    is_digest = isinstance(value, str) and _DIGEST.fullmatch(value)
    return f"{value[:8]}..." if is_digest else repr(value)
