# SPDX-License-Identifier: Apache-2.0
"""`${name}`: a whole value of a recipe that is given once, under `variables`."""

import re
from collections.abc import Iterator
from typing import Any

from gossamer.recipes.faults import Fault, Path, near, show
from gossamer.recipes.yaml_lines import Document

WHOLE = re.compile(r"\$\{([^{}]*)\}")


def unused_variables(document: Document) -> list[Fault]:
    """A fault for every variable that no value names."""
    used = {name for _, name in _uses(document.data)}
    return [
        document.fault(
            ("variables", name),
            f"is never used. Write ${{{name}}} where it belongs, or remove it.",
        )
        for name in _variables(document.data)
        if name not in used
    ]


def substitute(document: Document) -> tuple[Any, dict[Path, str], list[Fault]]:
    """The data with variables filled in, which path came from which name, and the faults."""
    known = _variables(document.data)
    names: dict[Path, str] = {}
    faults: list[Fault] = []

    def fill(value: Any, path: Path) -> Any:
        if path == ("variables",):
            return value
        if isinstance(value, dict):
            return {key: fill(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        match = WHOLE.fullmatch(value)
        if match is None:
            text = f"{show(value)}: ${{name}} must be the whole value, not a part of it."
            faults.append(document.fault(path, text))
        elif match[1] not in known:
            listed = ", ".join(known) if known else "none"
            text = f"undefined variable {show(match[1])}.{near(match[1], list(known))}"
            faults.append(document.fault(path, f"{text} Defined under variables: {listed}."))
        else:
            names[path] = match[1]
            return known[match[1]]
        return value

    faults += [
        document.fault(("variables", name), "a variable cannot hold another variable.")
        for name, value in known.items()
        if isinstance(value, str) and "${" in value
    ]
    return fill(document.data, ()), names, faults


def _variables(data: Any) -> dict[str, Any]:
    found = data.get("variables") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _uses(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    if path == ("variables",):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _uses(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _uses(item, (*path, index))
    elif isinstance(value, str) and (match := WHOLE.fullmatch(value)):
        yield path, match[1]
