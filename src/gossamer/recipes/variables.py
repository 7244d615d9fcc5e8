# SPDX-License-Identifier: Apache-2.0
"""`${name}`: a whole value of a recipe that is given once, under `variables`."""

import re
from collections.abc import Callable
from typing import Any

from gossamer.recipes.faults import Fault, Path, near, show
from gossamer.recipes.yaml_lines import Document

WHOLE = re.compile(r"\$\{([^{}]*)\}")


def unused_variables(document: Document) -> list[Fault]:
    """A fault for every variable that no value names."""
    _, used, _ = substitute(document)
    return [
        document.fault(
            ("variables", name),
            f"is never used. Write ${{{name}}} where it belongs, or remove it.",
        )
        for name in _variables(document.data)
        if name not in used.values()
    ]


def substitute(document: Document) -> tuple[Any, dict[Path, str], list[Fault]]:
    """The data with variables filled in, which path came from which name, and the faults."""
    known = _variables(document.data)
    names: dict[Path, str] = {}
    faults: list[Fault] = []

    def fill(text: str, path: Path) -> Any:
        if "${" not in text:
            return text
        match = WHOLE.fullmatch(text)
        if match is None:
            words = f"{show(text)}: ${{name}} must be the whole value, not a part of it."
            faults.append(document.fault(path, words))
        elif match[1] not in known:
            listed = ", ".join(known) if known else "none"
            words = f"undefined variable {show(match[1])}.{near(match[1], list(known))}"
            faults.append(document.fault(path, f"{words} Defined under variables: {listed}."))
        else:
            names[path] = match[1]
            return known[match[1]]
        return text

    faults += [
        document.fault(("variables", name), "a variable cannot hold another variable.")
        for name, value in known.items()
        if isinstance(value, str) and "${" in value
    ]
    return _map_texts(document.data, fill), names, faults


def _variables(data: Any) -> dict[str, Any]:
    found = data.get("variables") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _map_texts(value: Any, change: Callable[[str, Path], Any], path: Path = ()) -> Any:
    """The data with every text outside `variables` changed."""
    if path == ("variables",):
        return value
    if isinstance(value, dict):
        return {key: _map_texts(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change, (*path, number)) for number, item in enumerate(value)]
    return change(value, path) if isinstance(value, str) else value
