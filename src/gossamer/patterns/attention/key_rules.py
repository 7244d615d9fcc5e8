# SPDX-License-Identifier: Apache-2.0
"""Which keys a decoder reads while it writes, and what they are stored in: a text and its rules.

pages:512                 for each token the pages of 16 keys that may weigh most, 512 keys in all
mass:0.95                 in prompts the tiles that hold this share of a head's weights
sinks:4+window:1024       the first and the last tokens; memory is bounded and the text is not
mass:0.95+pages:512       both, each in its phase
"""

import re
from dataclasses import dataclass, fields, replace

from gossamer.errors import PatternError
from gossamer.patterns.attention.nearest import nearest

__all__ = ["KEY_TYPES", "LEGAL_KEY_RULES", "KeyRules", "parse_key_rules"]

KEY_TYPES = ("fp32", "int8", "int4")
LEGAL_KEY_RULES = "'full', 'sinks:4+window:1024', 'pages:512', 'mass:0.95', 'mass:0.95+pages:512'"
_WHERE = "attention of a decoder"
_MOST = 1 << 24
# Term -> the rule that its first number is, and those that may follow.
_TERMS: dict[str, tuple[str, ...]] = {
    "full": (),
    "sinks": ("sinks",),
    "window": ("window",),
    "pages": ("pages", "whole"),
    "mass": ("mass",),
}
_EXAMPLES = {"sinks": "sinks:4", "window": "window:1024", "pages": "pages:512", "mass": "mass:0.95"}


@dataclass(frozen=True)
class KeyRules:
    """Which keys a token attends to, besides a window of the model; the defaults are all of them.

    Attributes:
        dtype: what keys and values are stored in, one of `KEY_TYPES`; int8 and int4
            have a scale for each token and head.
        sinks: the first tokens, which stay when the window has passed them.
        window: the last tokens, the newest included; others are forgotten. 0: none is.
        pages: keys that a token reads, in pages of 16 chosen for it; 0: all.
        whole: first layers that read all pages nevertheless.
        mass: of the weights of a prompt's tokens, what the tiles that are kept hold; 1: all tiles.
    """

    dtype: str = "fp32"
    sinks: int = 0
    window: int = 0
    pages: int = 0
    whole: int = 2
    mass: float = 1.0

    def __post_init__(self) -> None:
        if self.dtype not in KEY_TYPES:
            raise PatternError(
                f"{_WHERE}: keys are stored in one of {', '.join(KEY_TYPES)}, got {self.dtype!r}."
            )
        if self.sinks and not self.window:
            raise PatternError(
                f"{_WHERE}: 'sinks:{self.sinks}' needs a window, such as"
                f" 'sinks:{self.sinks}+window:1024'."
            )
        if self.window and self.pages:
            raise PatternError(
                f"{_WHERE}: 'window:{self.window}' forgets keys and 'pages:{self.pages}' chooses"
                " among all of them. Use one of the two."
            )

    @property
    def reach(self) -> int:
        """Tokens that a bounded memory holds; 0: all of a text."""
        return self.sinks + self.window

    def __str__(self) -> str:
        named = [f"sinks:{self.sinks}"] * bool(self.sinks)
        named += [f"window:{self.window}"] * bool(self.window)
        named += [f"mass:{self.mass:g}"] * (self.mass < 1)
        whole = "" if self.whole == KeyRules().whole else f",whole={self.whole}"
        named += [f"pages:{self.pages}{whole}"] * bool(self.pages)
        return "+".join(named) or "full"


def parse_key_rules(text: "str | KeyRules | None", dtype: str | None = None) -> KeyRules:
    """The rules that `text` names; `dtype` says what keys are stored in, None: fp32."""
    if isinstance(text, KeyRules):
        return text if dtype is None else replace(text, dtype=dtype)
    if text is not None and not isinstance(text, str):
        raise PatternError(
            f"{_WHERE}: expected text, got {type(text).__name__}. Legal are {LEGAL_KEY_RULES}."
        )
    given: dict[str, float] = {}
    at = 0
    for piece in re.split(r"[+|]", "full" if text is None else text):
        _read(str(text), piece, at, given)
        at += len(piece) + 1
    numbers = {f.name: int(given[f.name]) for f in fields(KeyRules) if f.name in given}
    if "mass" in given:
        return KeyRules(dtype or "fp32", **numbers | {"mass": given["mass"]})  # type: ignore[arg-type]
    return KeyRules(dtype or "fp32", **numbers)


def _fault(text: str, place: int, what: str) -> PatternError:
    return PatternError(
        f"{_WHERE} {text!r}, position {place + 1}: {what} Legal are {LEGAL_KEY_RULES}."
    )


def _read(text: str, piece: str, start: int, given: dict[str, float]) -> None:
    start += len(piece) - len(piece.lstrip())
    piece = piece.strip()
    name, _, rest = piece.partition(":")
    if not piece:
        raise _fault(text, start, "a term is missing.")
    if name not in _TERMS:
        raise _fault(text, start, f"no term is called '{name}'; {nearest(name, list(_TERMS))}")
    keys = _TERMS[name]
    at = start + len(name) + 1
    arguments = rest.split(",") if rest else []
    if bool(arguments) != bool(keys):
        if not keys:
            raise _fault(text, start, f"'{name}' takes no numbers.")
        raise _fault(text, start, f"'{name}' needs a number, such as '{_EXAMPLES[name]}'.")
    for number, argument in enumerate(arguments):
        key, equals, value = argument.partition("=")
        if not equals and number == 0:
            key, value = keys[0], key
        key, value = key.strip(), value.strip()
        if key not in keys:
            raise _fault(text, at, f"'{name}' has no '{key}'; {nearest(key, list(keys))}")
        if key in given:
            raise _fault(text, at, f"'{key}' is given twice.")
        given[key] = _number(text, at, key, value)
        at += len(argument) + 1


def _number(text: str, at: int, key: str, value: str) -> float:
    if key == "mass":
        if not re.fullmatch(r"[0-9]*\.?[0-9]{1,9}", value) or not 0 < float(value) <= 1:
            raise _fault(text, at, f"'mass' must be above 0 and at most 1, got '{value}'.")
        return float(value)
    least = 0 if key == "whole" else 1
    if not re.fullmatch("[0-9]{1,9}", value) or not least <= int(value) <= _MOST:
        raise _fault(text, at, f"'{key}' must be a whole number from {least}, got '{value}'.")
    return int(value)
