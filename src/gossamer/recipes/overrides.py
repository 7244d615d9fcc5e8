# SPDX-License-Identifier: Apache-2.0
"""`--set`: one variable or one field of a recipe gets another value.

`sparsity=0.7` sets a variable, `stages.0.prune.damping=0.1` a field. Values are read as in a file.
"""

import copy
import re
from collections.abc import Sequence
from typing import Any

from gossamer.errors import RecipeError
from gossamer.recipes.faults import Fault, Path, RecipeFaults, dotted
from gossamer.recipes.fractions import is_percentage, parse_fraction
from gossamer.recipes.phrases import near, plain, show
from gossamer.recipes.yaml_lines import Document, parse_value


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with every override carried out, or RecipeFaults with all that cannot be."""
    data = copy.deepcopy(document.data)
    lines, set_by = document.lines, document.set_by
    faults: list[Fault] = []
    for text in overrides:
        try:
            path, value = _read(text)
            _place(data, path, value)
        except _Refused as error:
            faults.append(Fault(f"--set {plain(text)}", None, "", str(error)))
            continue
        lines = {known: line for known, line in lines.items() if known[: len(path)] != path}
        set_by = {known: by for known, by in set_by.items() if known[: len(path)] != path}
        set_by[path] = plain(text)
    if faults:
        raise RecipeFaults(faults)
    return Document(document.source, data, lines, set_by)


class _Refused(Exception):
    """Why one override cannot be carried out."""


def _read(text: str) -> tuple[Path, Any]:
    name, equals, value = text.partition("=")
    # stages[0].prune and stages.0.prune are the same place.
    parts = re.sub(r"\[(\d+)\]", r".\1", name.strip()).split(".")
    if not equals or not all(parts):
        raise _Refused("expected NAME=VALUE, such as sparsity=0.7 or stages.0.prune.damping=0.1.")
    if is_percentage(value):
        # As --sparsity takes it. Files say 0.9: a text with % in them stays a text.
        value = repr(parse_fraction(value))
    try:
        parsed = parse_value(value)
    except RecipeError as error:
        raise _Refused(f"the value cannot be read: {str(error).partition(': ')[2]}") from error
    if len(parts) == 1:
        return ("variables", parts[0]), parsed
    return tuple(int(part) if part.isdecimal() else part for part in parts), parsed


def _place(here: Any, path: Path, value: Any) -> None:
    """Put `value` at `path`; sections that are left out are made."""
    for depth, part in enumerate(path):
        last, place = depth == len(path) - 1, dotted(path[:depth])
        if isinstance(here, list):
            if not isinstance(part, int) or part >= len(here):
                raise _Refused(
                    f"{place} has {len(here)} item(s), counted from 0; there is no {show(part)}."
                    f" Write {place}.0 for the first."
                )
        elif isinstance(here, dict):
            part = str(part)
            if path[0] == "variables" and depth == 1 and part not in here:
                known = ", ".join(here) if here else "none"
                raise _Refused(
                    f"there is no variable {show(part)}.{near(part, list(here))} Defined: {known}."
                    " A field is set by its path, such as stages.0.prune.sparsity=0.7."
                )
            if not last and here.get(part) is None:
                here[part] = {}
        else:
            raise _Refused(f"{place} is {show(here)} and has no {show(part)}.")
        if last:
            here[part] = value
        else:
            here = here[part]
