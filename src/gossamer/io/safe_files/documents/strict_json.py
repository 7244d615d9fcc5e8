# SPDX-License-Identifier: Apache-2.0
"""The one door for JSON of files: bounded size, depth and count, no duplicate keys, no NaN.

`canonical_json` is the one text that digests are taken of.
"""

import json
import math
import re
from collections.abc import Callable
from itertools import chain
from typing import Any, NoReturn

from gossamer.errors import ArtifactError, GossamerError, InputError
from gossamer.io.safe_files.limits import (
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    MAX_LINE_BYTES,
    MAX_LINE_VALUES,
    MAX_MANIFEST_BYTES,
)

_OPENING = b"[{"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# 128 bits, as states of random generators have them; any such number is a finite float.
_MAX_DIGITS = 39
# Half of a character beyond the 65536th: text that holds one of them alone cannot be written.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Fail = Callable[[str], GossamerError]


def parse_json(
    raw: bytes,
    where: str,
    *,
    max_bytes: int = MAX_MANIFEST_BYTES,
    max_values: int = MAX_JSON_VALUES,
    error: type[GossamerError] = ArtifactError,
) -> Any:
    """The value behind `raw`, or `error` saying what is wrong with it.

    Args:
        raw: the bytes.
        where: the file, and the line if it is one of many.
        max_bytes: more are not looked at.
        max_values: about as many may be in it; commas and escapes inside texts count too.
        error: class of what is raised; InputError where a user wrote the file.
    """

    def fail(text: str) -> GossamerError:
        return error(f"{where}: {text}")

    if len(raw) > max_bytes:
        raise fail(f"{len(raw)} bytes of JSON; at most {max_bytes} are allowed.")
    _check_count(raw, max_values, fail)
    _check_depth(raw, fail)
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=lambda pairs: _unique(pairs, fail),
            parse_constant=lambda text: _refuse_constant(text, fail),
            parse_float=lambda text: _finite(text, fail),
            parse_int=lambda text: _whole(text, fail),
        )
    except UnicodeDecodeError as fault:
        raise fail(f"not UTF-8 at byte {fault.start}.") from fault
    except (ValueError, RecursionError) as fault:
        if isinstance(fault, GossamerError):
            raise
        raise fail(f"not valid JSON ({str(fault)[:200]}).") from fault
    if _SURROGATE.search(raw):
        _check_texts(value, fail)
    return value


def parse_json_line(line: str, where: str) -> Any:
    """The value in one line of a user's .jsonl file, or InputError."""
    return parse_json(
        line.encode("utf-8"),
        where,
        max_bytes=MAX_LINE_BYTES,
        max_values=MAX_LINE_VALUES,
        error=InputError,
    )


def canonical_json(value: Any) -> bytes:
    """The same bytes for equal values: sorted keys, no spaces, ASCII, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")


def pretty_json(value: Any) -> bytes:
    """Deterministic JSON for files that people read; a cut anywhere makes it invalid."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def _check_count(raw: bytes, max_values: int, fail: Fail) -> None:
    # Before parsing: "[],[],..." turns 3 bytes into an object of 64.
    num_values = sum(raw.count(token) for token in (b",", b"[", b"{", b"\\"))
    # A key and a value of four quotes each is the most that valid JSON has per separator.
    num_values = max(num_values, raw.count(b'"') // 4)
    if num_values > max_values:
        raise fail(f"about {num_values} JSON values, more than the {max_values} allowed.")


def _check_depth(raw: bytes, fail: Fail) -> None:
    # Without escapes, every second part between quotes lies outside of strings.
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    depth = 0
    for bracket in chain.from_iterable(part.translate(None, _NOT_BRACKETS) for part in parts):
        depth += 1 if bracket in _OPENING else -1
        if depth > MAX_JSON_DEPTH:
            raise fail(f"JSON nested deeper than {MAX_JSON_DEPTH} levels.")


def _unique(pairs: list[tuple[str, Any]], fail: Fail) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise fail(f"the key {key[:80]!a} appears twice.")
            seen.add(key)
    return result


def _finite(text: str, fail: Fail) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise fail(f"the number {text[:40]} is too large.")
    return value


def _whole(text: str, fail: Fail) -> int:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise fail(f"not valid JSON (a number of {len(text)} digits, at most {_MAX_DIGITS}).")
    return int(text)


def _refuse_constant(text: str, fail: Fail) -> NoReturn:
    raise fail(f"{text} is not valid JSON.")


def _check_texts(value: Any, fail: Fail) -> None:
    """Refuse text with half a character, keys included."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise fail(f"the text {value[:40]!a} holds half of a surrogate pair, no character.")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_texts(key, fail)
            _check_texts(item, fail)
    elif isinstance(value, list):
        for item in value:
            _check_texts(item, fail)
