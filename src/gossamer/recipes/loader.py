# SPDX-License-Identifier: Apache-2.0
"""From a file or a built-in name to a checked `Recipe`; every fault is told at once.

Order: size, UTF-8, YAML, overrides, variables, schema. Nothing here imports torch.

An override (`--set`) is read as values in a file are: `sparsity=0.7` sets a variable,
`stages.0.prune.damping=0.1` a field.
"""

import copy
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.errors import RecipeError
from gossamer.recipes.faults import Fault, RecipeFaults, dotted
from gossamer.recipes.faults import Path as FieldPath
from gossamer.recipes.fractions import is_percentage, parse_fraction
from gossamer.recipes.phrases import near, plain, show
from gossamer.recipes.schema import Recipe
from gossamer.recipes.wording import recipe_findings
from gossamer.recipes.yaml_lines import Document, parse_value, parse_yaml, read_file


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with every override carried out, or RecipeFaults with all that cannot be."""
    data = copy.deepcopy(document.data)
    lines, set_by = document.lines, document.set_by
    faults: list[Fault] = []
    for text in overrides:
        try:
            path, value = _read_override(text)
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


def _read_override(text: str) -> tuple[FieldPath, Any]:
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


def _place(here: Any, path: FieldPath, value: Any) -> None:
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


_BUILTIN = Path(__file__).parent / "builtin"
# A whole value that is given once, under `variables`.
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")


def load_recipe(source: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, or the built-in one of that name.

    Args:
        source: a path, or a name that `builtin_names` lists.
        overrides: "name=value" sets a variable, "stages.0.prune.damping=0.1" a field.

    Raises:
        RecipeError: with all faults; each has file, line, path, value and what is expected.
    """
    # A plain built-in name wins over a file.
    if isinstance(source, str) and source in builtin_names():
        return parse_recipe(builtin_text(source).encode(), f"{source}.yaml", overrides)
    path, where = Path(source), plain(str(source))
    raw = read_file(path, RecipeError)
    if raw is None:
        raise RecipeError(_missing(where, path))
    return parse_recipe(raw, where, overrides)


def parse_recipe(raw: bytes, source: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the bytes of a file; `source` is its name in messages."""
    document = parse_yaml(raw, source)
    if document.data is None:
        raise RecipeFaults([Fault(source, None, "", "is empty; a recipe starts 'gossamer: 1'.")])
    if not isinstance(document.data, dict):
        text = f"expected a mapping that starts 'gossamer: 1', got {show(document.data)}."
        raise RecipeFaults([document.fault((), text)])
    # Before the overrides: a field that --set replaces may have held the only use.
    _, used, _ = _substitute(document)
    faults = [
        document.fault(
            ("variables", name),
            f"is never used. Write ${{{name}}} where it belongs, or remove it.",
        )
        for name in _variables(document.data)
        if name not in used.values()
    ]
    document = apply_overrides(document, overrides)
    data, from_variable, found = _substitute(document)
    faults += found
    undefined = {fault.path for fault in found}
    recipe, findings = recipe_findings(data)
    for path, message in findings:
        fault = document.fault(path, message)
        if fault.path in undefined:
            continue  # The text of an undefined variable is no number either.
        if path in from_variable:
            fault = _with_origin(fault, document, from_variable[path])
        faults.append(fault)
    if faults or recipe is None:
        places = sorted(dict.fromkeys(faults), key=lambda fault: (fault.line or 0, fault.path))
        raise RecipeFaults(places)
    return recipe


def make_recipe(data: Mapping[str, Any], source: str) -> Recipe:
    """The recipe in a mapping that did not come from a file."""
    recipe, findings = recipe_findings(dict(data))
    if findings or recipe is None:
        raise RecipeFaults([Fault(source, None, dotted(path), text) for path, text in findings])
    return recipe


def prune_recipe(step: Mapping[str, Any], source: str) -> Recipe:
    """The recipe of one `prune` stage; settings that are None are left out."""
    given = {name: value for name, value in step.items() if value is not None}
    return make_recipe({"gossamer": 1, "stages": [{"prune": given}]}, source)


def builtin_names() -> list[str]:
    """Names of the recipes that come with gossamer."""
    return sorted(file.stem for file in _BUILTIN.glob("*.yaml"))


def builtin_text(name: str) -> str:
    """The file of a built-in recipe, comments included."""
    names = builtin_names()
    if name not in names:
        raise RecipeError(
            f"there is no built-in recipe {show(name)}.{near(name, names)} Built in:"
            f" {', '.join(names)}."
        )
    return (_BUILTIN / f"{name}.yaml").read_text(encoding="utf-8")


def _missing(where: str, path: Path) -> str:
    names, is_yaml = builtin_names(), path.suffix in (".yaml", ".yml")
    name = path.stem if is_yaml else path.name
    if name in names:
        hint = f" {name!r} is a built-in recipe: name it so, or 'gossamer recipe copy {name}'."
    else:
        hint = near(name, names) + " Run 'gossamer recipe list'."
    kind = "" if is_yaml else " or built-in recipe"
    return f"{where}: there is no such file{kind}.{hint}"


def _with_origin(fault: Fault, document: Document, name: str) -> Fault:
    origin = document.fault(("variables", name), "")
    if origin.line is None:
        return replace(origin, path=fault.path, message=f"{fault.message} (${{{name}}})")
    return replace(fault, message=f"{fault.message} (${{{name}}} of line {origin.line})")


def _substitute(document: Document) -> tuple[Any, dict[FieldPath, str], list[Fault]]:
    """The data with variables filled in, which path came from which name, and the faults."""
    known = _variables(document.data)
    names: dict[FieldPath, str] = {}
    faults: list[Fault] = []

    def fill(text: str, path: FieldPath) -> Any:
        if "${" not in text:
            return text
        match = _VARIABLE.fullmatch(text)
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


def _map_texts(value: Any, change: Callable[[str, FieldPath], Any], path: FieldPath = ()) -> Any:
    """The data with every text outside `variables` changed."""
    if path == ("variables",):
        return value
    if isinstance(value, dict):
        return {key: _map_texts(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change, (*path, number)) for number, item in enumerate(value)]
    return change(value, path) if isinstance(value, str) else value
