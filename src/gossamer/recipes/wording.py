# SPDX-License-Identifier: Apache-2.0
"""pydantic's findings in gossamer's words: what is wrong, what is expected, a near match."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from gossamer.recipes.faults import Path
from gossamer.recipes.phrases import LIMITS, SCHEMA_HINT, field_words, fraction_words, near, show
from gossamer.recipes.schema import ONE_STEP, SCHEMA_VERSION, SECTIONS, Recipe, Stage
from gossamer.recipes.stages import StageSettings
from gossamer.recipes.stages.schedules import SCHEDULES

_SCHEDULE = "schedule"
Finding = tuple[Path, str]


def recipe_findings(data: dict[str, Any]) -> tuple[Recipe | None, list[Finding]]:
    """The recipe, or all that is wrong with `data`."""
    recipe, findings = None, list(_stage_findings(data))
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        rules = []
        for found in error.errors(include_url=False):
            path = _path(found)
            if found["type"] == "value_error":
                # Other rules are told by _stage_findings, whether fields are in fault or not.
                if _SCHEDULE in found["loc"]:
                    rules.append(_schedule_rule(path, str(found["ctx"]["error"])))
            # A list is called too short where its items are in fault; those are told themselves.
            elif found["type"] != "too_short" or not found["input"]:
                findings.append((path, _words(path, found)))
        findings += rules
    return (None if findings else recipe), findings


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
        for step in given:
            model = SECTIONS[step]
            if isinstance(stage[step], dict) and issubclass(model, StageSettings):
                for name, message in model.faults(stage[step]):
                    yield ("stages", index, step, *name.split(".")), message


def _words(path: Path, found: Any) -> str:
    kind, value = found["type"], found["input"]
    name = str(path[-1]) if path else ""
    if path == ("gossamer",) and kind in ("literal_error", "int_type", "missing"):
        return _version(kind, value)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        return _schedule_kind(value)
    sections = [SECTIONS[part] for part in found["loc"][:-1] if part in SECTIONS]
    model = sections[-1] if sections else Recipe
    if kind in LIMITS and name in model.fractions:
        return fraction_words(value, model.fractions[name])
    return field_words(name, found, model.model_fields, SCHEMA_HINT)


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
    kind, listed = value.get("kind"), ", ".join(SCHEDULES)
    if "kind" not in value:
        return f"is missing; expected one of {listed}. {SCHEMA_HINT}"
    return f"unknown kind {show(kind)}.{near(kind, tuple(SCHEDULES))} Expected one of {listed}."


def _schedule_rule(path: Path, text: str) -> Finding:
    """A rule over several fields says `field: what is wrong`."""
    name, colon, rest = text.partition(": ")
    return ((*path, name), rest) if colon and name.isidentifier() else (path, text)


def _version(kind: str, value: Any) -> str:
    want = f"expected 'gossamer: {SCHEMA_VERSION}', the version of the schema"
    if kind == "missing":
        return f"is missing; {want}, at the top of every recipe."
    return f"unknown version {show(value)}; {want}. A newer recipe needs a newer gossamer."
