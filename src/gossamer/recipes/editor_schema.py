# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of recipe files, for editors: what `gossamer recipe schema` prints."""

from typing import Any

from gossamer.method_table import METHOD_SETTINGS, METHODS, methods_with
from gossamer.recipes.schema import SECTIONS, Recipe, Stage
from gossamer.recipes.stages import Prune

_VARIABLE = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_-]*\}$"}
_NOTES = ("description", "default", "title")


def json_schema() -> dict[str, Any]:
    """The schema of a file: any value below calibration and stages may also be `${name}`."""
    schema = Recipe.model_json_schema()
    definitions = schema["$defs"]
    for model in SECTIONS.values():
        if model is not Stage:
            properties = definitions[model.__name__]["properties"]
            properties |= {name: _or_variable(rule) for name, rule in properties.items()}
    # Without `kind: scorer`, the method is one of ours.
    scorer = {"required": ["kind"], "properties": {"kind": {"const": "scorer"}}}
    method = {"anyOf": [{"enum": list(METHODS)}, _VARIABLE]}
    built_in = {"if": {"not": scorer}, "then": {"properties": {"method": method}}}
    definitions[Prune.__name__]["allOf"] = [built_in, *_own_settings()]
    definitions[Stage.__name__] |= {"minProperties": 1, "maxProperties": 1}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _or_variable(rule: dict[str, Any]) -> dict[str, Any]:
    notes = {key: value for key, value in rule.items() if key in _NOTES}
    core = {key: value for key, value in rule.items() if key not in _NOTES}
    options = core.get("anyOf", [core])
    # One rule may stand without brackets, as in `targets: Linear`.
    bare = [option["items"] for option in options if "items" in option]
    return {**notes, "anyOf": [*options, *bare, _VARIABLE]}


def _own_settings() -> list[dict[str, Any]]:
    """A setting is null where the method is a known one that does not have it."""
    rules = []
    for name in METHOD_SETTINGS:
        others = [method for method in METHODS if method not in methods_with(name)]
        lacks: dict[str, Any] = {"properties": {"method": {"enum": others}}}
        if name == "match":
            lacks["properties"]["refit"] = {"const": False}
        rules.append({"if": lacks, "then": {"properties": {name: {"type": "null"}}}})
    return rules
