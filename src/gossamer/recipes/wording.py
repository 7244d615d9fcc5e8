# SPDX-License-Identifier: Apache-2.0
"""pydantic's findings in gossamer's words: what is wrong, what is expected, a near match."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from gossamer.recipes.faults import Path, near, show
from gossamer.recipes.method_rules import SCHEMA_HINT, fraction_hint, prune_faults
from gossamer.recipes.recover_schema import Recover, recover_faults
from gossamer.recipes.relufy_schema import Relufy
from gossamer.recipes.schedule_schema import SCHEDULES
from gossamer.recipes.schema import (
    ONE_STEP,
    SCHEMA_VERSION,
    Calibration,
    Prune,
    Recipe,
    Stage,
    Structured,
)
from gossamer.recipes.tokens_schema import Tokens, tokens_faults
from gossamer.recipes.train_rules import train_faults
from gossamer.recipes.train_schema import (
    Architecture,
    CheckpointSettings,
    EvaluationSettings,
    OptimizerSettings,
    RateSettings,
    Train,
    TrainData,
)

_EXPECTED = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
_LIMITS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} long",
    "too_long": "at most {max_length} long",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
}
_FRACTIONS = {
    ("prune", "sparsity"): "[0, 1)",
    ("structured", "budget"): "(0, 1]",
    ("schedule", "sparsity"): "[0, 1)",
}
_KINDS = {str(kind.model_fields["kind"].default): kind for kind in SCHEDULES}
_SCHEDULE = "schedule"
Finding = tuple[Path, str]


def recipe_findings(data: dict[str, Any]) -> tuple[Recipe | None, list[Finding]]:
    """The recipe, or all that is wrong with `data`."""
    recipe, findings = None, list(_stage_findings(data))
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        # Rules over several fields are told by _stage_findings, fields in fault or not.
        found_all = [found for found in error.errors(include_url=False) if not _is_echo(found)]
        findings += [
            (_path(found), _words(_path(found), found))
            for found in found_all
            if found["type"] != "value_error"
        ]
        findings += [_schedule_rule(found) for found in found_all if _is_schedule_rule(found)]
    return (None if findings else recipe), findings


_FAULTS: dict[str, Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]] = {
    "prune": prune_faults,
    "recover": recover_faults,
    "tokens": tokens_faults,
    "train": train_faults,
}


def _stage_findings(data: dict[str, Any]) -> Iterator[Finding]:
    stages = data.get("stages")
    for index, stage in enumerate(stages if isinstance(stages, list) else ()):
        if not isinstance(stage, dict):
            continue
        given = [name for name in Stage.model_fields if name in stage]
        if len(given) != 1 and not stage.keys() - set(Stage.model_fields):
            has = " and ".join(given) if given else "none of them"
            yield ("stages", index), f"{ONE_STEP}, this one has {has}. Write '- prune:'."
        elif len(given) == 1 and stage[given[0]] is None:
            yield ("stages", index, given[0]), f"expected a mapping, got {show(None)}."
        for step, faults in _FAULTS.items():
            if isinstance(stage.get(step), dict):
                for name, message in faults(stage[step]):
                    yield ("stages", index, step, *name.split(".")), message


def _words(path: Path, found: Any) -> str:
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    name = str(path[-1]) if path else ""
    if path == ("gossamer",) and kind in ("literal_error", "int_type", "missing"):
        return _version(kind, value)
    if kind == "extra_forbidden":
        known = tuple(_model_at(found["loc"][:-1]).model_fields)
        hint = near(name, known)
        return f"unknown key {show(name)}.{hint} Expected one of {', '.join(known)}. {SCHEMA_HINT}"
    if kind == "missing":
        field = _model_at(found["loc"][:-1]).model_fields[name]
        return f"is missing. {field.description or ''}".strip()
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _schedule_kind(value)
    if kind == "literal_error":
        legal = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        if not isinstance(value, str):
            return f"expected one of {', '.join(legal)}, got {show(value)}."
        return (
            f"unknown {name} {show(value)}.{near(value, legal)} Expected one of"
            f" {', '.join(legal)}. {SCHEMA_HINT}"
        )
    if kind in _LIMITS and path[-2:] in _FRACTIONS:
        return fraction_hint(value, _FRACTIONS[path[-2:]])  # type: ignore[index]
    if kind in _LIMITS:
        return f"must be {_LIMITS[kind].format(**context)}, got {show(value)}."
    if kind in _EXPECTED:
        return _type(_EXPECTED[kind], value)
    if kind == "string_pattern_mismatch":
        return f"{show(value)} is no name; expected letters, digits, '_' and '-'."
    return f"{found['msg']}, got {show(value)}."


def _is_echo(found: Any) -> bool:
    """A list is called too short where its items are in fault; those are told themselves."""
    return found["type"] == "too_short" and bool(found["input"])


def _path(found: Any) -> Path:
    path: Path = found["loc"]
    if found["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return (*path, "kind") if isinstance(found["input"], dict) else path
    path = path[:-1] if path[-1:] == ("[key]",) else path
    # pydantic names the kind of a schedule as if it were a level of the file.
    return tuple(
        part for index, part in enumerate(path) if not index or path[index - 1] != _SCHEDULE
    )


def _schedule_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return f"expected a mapping with kind and sparsity, got {show(value)}."
    listed = ", ".join(_KINDS)
    if "kind" not in value:
        return f"is missing; expected one of {listed}. {SCHEMA_HINT}"
    kind = value["kind"]
    return f"unknown kind {show(kind)}.{near(kind, tuple(_KINDS))} Expected one of {listed}."


def _is_schedule_rule(found: Any) -> bool:
    return found["type"] == "value_error" and _SCHEDULE in found["loc"]


def _schedule_rule(found: Any) -> Finding:
    """A rule over several fields says `field: what is wrong`."""
    text = str(found["ctx"]["error"])
    name, colon, rest = text.partition(": ")
    if colon and name.isidentifier():
        return (*_path(found), name), rest
    return _path(found), text


def _version(kind: str, value: Any) -> str:
    want = f"expected 'gossamer: {SCHEMA_VERSION}', the version of the schema"
    if kind == "missing":
        return f"is missing; {want}, at the top of every recipe."
    return f"unknown version {show(value)}; {want}. A newer recipe needs a newer gossamer."


def _type(expected: str, value: Any) -> str:
    hint = ""
    if isinstance(value, str) and expected in ("a number", "a whole number"):
        plain = value.strip().removesuffix("%").strip().replace(".", "", 1)
        if plain.isascii() and plain.isdigit():
            percent = "%" in value
            hint = " Write a fraction such as 0.5." if percent else " Remove the quotes."
    return f"expected {expected}, got {show(value)}.{hint}"


def _model_at(path: Path) -> type[BaseModel]:
    """The model that holds the fields below `path`."""
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return Recipe
    inner: dict[str, type[BaseModel]] = {
        "stages": Stage,
        "prune": Prune,
        "structured": Structured,
        "recover": Recover,
        "tokens": Tokens,
        "relufy": Relufy,
        "calibration": Calibration,
        "train": Train,
        "model": Architecture,
        "data": TrainData,
        "optimizer": OptimizerSettings,
        "rate": RateSettings,
        "checkpoint": CheckpointSettings,
        "evaluation": EvaluationSettings,
        **_KINDS,
    }
    return inner[names[-1]]
