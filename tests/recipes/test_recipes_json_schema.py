# SPDX-License-Identifier: Apache-2.0
"""The JSON schema accepts what the loader accepts, for the keywords it uses."""

import re

import pytest

from gossamer.recipes import builtin_names, builtin_text, json_schema
from gossamer.recipes.stages import Prune
from gossamer.recipes.yaml_lines import parse_yaml

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def accepts(rule, value, root):
    """A checker of the few keywords that pydantic and we write; an unknown keyword fails."""
    return all(_keyword(key, word, rule, value, root) for key, word in rule.items())


def _is_type(name, value):
    numeric = name in ("integer", "number")
    return isinstance(value, TYPES[name]) and not (numeric and isinstance(value, bool))


def _keyword(key, word, rule, value, root):
    mapping = value if isinstance(value, dict) else {}
    number = value if isinstance(value, int | float) else None
    length = len(value) if isinstance(value, list | str) else None
    checks = {
        "$ref": lambda: accepts(root["$defs"][word.rsplit("/", 1)[-1]], value, root),
        "type": lambda: _is_type(word, value),
        "const": lambda: value == word,
        "enum": lambda: value in word,
        "anyOf": lambda: any(accepts(option, value, root) for option in word),
        "oneOf": lambda: sum(accepts(option, value, root) for option in word) == 1,
        "allOf": lambda: all(accepts(option, value, root) for option in word),
        "not": lambda: not accepts(word, value, root),
        "if": lambda: not accepts(word, value, root) or accepts(rule["then"], value, root),
        "required": lambda: set(word) <= set(mapping),
        "properties": lambda: all(
            accepts(word[name], item, root) for name, item in mapping.items() if name in word
        ),
        "patternProperties": lambda: all(
            accepts(inner, item, root)
            for pattern, inner in word.items()
            for name, item in mapping.items()
            if re.search(pattern, name)
        ),
        "additionalProperties": lambda: (
            word is not False or set(mapping) <= set(rule["properties"])
        ),
        "prefixItems": lambda: all(
            accepts(inner, item, root)
            for inner, item in zip(word, value if isinstance(value, list) else [], strict=False)
        ),
        "items": lambda: all(
            accepts(word, item, root) for item in (value if isinstance(value, list) else [])
        ),
        "pattern": lambda: not isinstance(value, str) or re.search(word, value),
        "minimum": lambda: number is None or number >= word,
        "maximum": lambda: number is None or number <= word,
        "exclusiveMinimum": lambda: number is None or number > word,
        "exclusiveMaximum": lambda: number is None or number < word,
        "minItems": lambda: not isinstance(value, list) or length >= word,
        "maxItems": lambda: not isinstance(value, list) or length <= word,
        "minLength": lambda: not isinstance(value, str) or length >= word,
        "maxLength": lambda: not isinstance(value, str) or length <= word,
        "minProperties": lambda: len(mapping) >= word,
        "maxProperties": lambda: len(mapping) <= word,
        **dict.fromkeys(
            (
                *("title", "description", "default", "then", "$defs", "$schema"),
                *("propertyNames", "discriminator"),
            ),
            lambda: True,
        ),
    }
    return bool(checks[key]())


def stage(**fields):
    return {"gossamer": 1, "stages": [{"prune": {"sparsity": 0.5, **fields}}]}


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_files_obey_it(name):
    schema = json_schema()
    assert accepts(schema, parse_yaml(builtin_text(name).encode(), name).data, schema)


@pytest.mark.parametrize(
    "document",
    [
        stage(method="wanda"),
        stage(method="mine", kind="scorer"),
        stage(method="${m}"),
        stage(method="wanda", targets="Linear"),
        stage(method="wanda", refit=True, match="dense"),
        stage(method="sparsegpt", quantise="${bits}"),
    ],
)
def test_it_accepts(document):
    schema = json_schema()
    assert accepts(schema, document, schema)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"gossamer": 2, "stages": [{"prune": {"method": "wanda"}}]},
        {"gossamer": 1, "stages": []},
        {"gossamer": 1, "stages": [{}]},
        {"gossamer": 1, "stages": [{"prune": {"method": "wanda"}, "structured": {"budget": 1}}]},
        {**stage(method="wanda"), "calibraton": {}},
        stage(method="wandaa"),
        stage(method="wanda", damping=0.1),
        stage(method="wanda", match="dense"),
        stage(method="admm", block=4),
        stage(method="wanda", sparsity=50),
        stage(method="wanda", sparsity="half"),
        stage(method="sparsegpt", quantise=5),
    ],
)
def test_it_refuses(document):
    schema = json_schema()
    assert not accepts(schema, document, schema)


def test_every_field_is_described():
    properties = json_schema()["$defs"]["Prune"]["properties"]
    assert set(properties) == set(Prune.model_fields)
    assert all(rule["description"] for rule in properties.values())
