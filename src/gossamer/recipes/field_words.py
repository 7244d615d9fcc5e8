# SPDX-License-Identifier: Apache-2.0
"""One finding of pydantic about one field of a file, in gossamer's words."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic.fields import FieldInfo

from gossamer.recipes.faults import near, show

SCHEMA_HINT: Final = "Run 'gossamer recipe schema'."
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
LIMITS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} long",
    "too_long": "at most {max_length} long",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
}


def field_words(name: str, found: Any, fields: Mapping[str, FieldInfo], hint: str) -> str:
    """What is wrong with the value of a field, what is expected, a near match.

    Args:
        name: of the field.
        found: an entry of `ValidationError.errors()`.
        fields: of the model that holds the field; looked at if the name is unknown or missing.
        hint: where to find what is legal.
    """
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    if kind == "extra_forbidden":
        known = tuple(info.alias or field for field, info in fields.items())
        return (
            f"unknown key {show(name)}.{near(name, known)} Expected one of {', '.join(known)}."
            f" {hint}"
        )
    if kind == "missing":
        by_alias = {info.alias or field: info for field, info in fields.items()}
        return f"is missing. {by_alias[name].description or ''}".strip()
    if kind == "literal_error":
        legal = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        if not isinstance(value, str):
            return f"expected one of {', '.join(legal)}, got {show(value)}."
        return (
            f"unknown {name} {show(value)}.{near(value, legal)} Expected one of"
            f" {', '.join(legal)}. {hint}"
        )
    if kind in LIMITS:
        return f"must be {LIMITS[kind].format(**context)}, got {show(value)}."
    if kind in _EXPECTED:
        return _type(_EXPECTED[kind], value)
    if kind == "string_pattern_mismatch":
        return f"{show(value)} is no name; expected letters, digits, '_' and '-'."
    return f"{found['msg']}, got {show(value)}."


def fraction_words(value: Any, legal: str) -> str:
    """Why a number is no fraction; percentages get the number to write."""
    if isinstance(value, int | float) and 1 < value < 100:
        return f"must be in {legal}, got {value}. Write {value / 100:g} for {value:g} %."
    if value == 1:
        return f"must be in {legal}, got {value}. At 1.0 nothing would be left."
    return f"must be in {legal}, got {value}."


def _type(expected: str, value: Any) -> str:
    hint = ""
    if isinstance(value, str) and expected in ("a number", "a whole number"):
        plain = value.strip().removesuffix("%").strip().replace(".", "", 1)
        if plain.isascii() and plain.isdigit():
            percent = "%" in value
            hint = " Write a fraction such as 0.5." if percent else " Remove the quotes."
    return f"expected {expected}, got {show(value)}.{hint}"
