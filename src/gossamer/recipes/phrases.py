# SPDX-License-Identifier: Apache-2.0
"""The words in which faults of recipes, and of other files of settings, are told.

`field_words` says what is wrong with a field, what is expected, and which known word is `near`;
`fraction_words` does so for fractions. `show` and `plain` make a value of a file safe to print.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = [
    "LIMITS",
    "MAX_SHOWN",
    "SCHEMA_HINT",
    "field_words",
    "fraction_words",
    "near",
    "plain",
    "show",
]

MAX_SHOWN = 60
SCHEMA_HINT = "Run 'gossamer recipe schema'."
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


def show(value: Any) -> str:
    """A value from a file, safe to print: ASCII, quoted, not too long."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    text = ascii(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def plain(text: str) -> str:
    """A word or path without quotes, safe to print."""
    return text if text.isprintable() else ascii(text)[1:-1]


def near(word: Any, known: Sequence[str]) -> str:
    """` Did you mean 'wanda'?`, or nothing if no known word is like it."""
    found = difflib.get_close_matches(str(word).lower(), known, n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def field_words(name: str, found: Any, fields: Mapping[str, "FieldInfo"], hint: str) -> str:
    """What is wrong with the value of a field, what is expected, a near match.

    Args:
        name: of the field.
        found: an entry of `ValidationError.errors()`.
        fields: of the model that holds the field; looked at if the name is unknown or missing.
        hint: where to find what is legal.
    """
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    known = {info.alias or field: info for field, info in fields.items()}
    if kind == "extra_forbidden":
        return (
            f"unknown key {show(name)}.{near(name, [*known])} Expected one of {', '.join(known)}."
            f" {hint}"
        )
    if kind == "missing":
        return f"is missing. {known[name].description or ''}".strip()
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
        expected = _EXPECTED[kind]
        return f"expected {expected}, got {show(value)}.{_number_hint(expected, value)}"
    if kind == "string_pattern_mismatch":
        return f"{show(value)} is no name; expected letters, digits, '_' and '-'."
    return f"{found['msg']}, got {show(value)}."


def fraction_words(value: Any, legal: str) -> str:
    """Why a number is no fraction; percentages get the number to write."""
    words = f"must be in {legal}, got {value}."
    if isinstance(value, int | float) and 1 < value < 100:
        return f"{words} Write {value / 100:g} for {value:g} %."
    return f"{words} At 1.0 nothing would be left." if value == 1 else words


def _number_hint(expected: str, value: Any) -> str:
    """What to do with a text that would be a number."""
    if isinstance(value, str) and expected.endswith("number"):
        digits = value.strip().removesuffix("%").strip().replace(".", "", 1)
        if digits.isascii() and digits.isdigit():
            return " Write a fraction such as 0.5." if "%" in value else " Remove the quotes."
    return ""
