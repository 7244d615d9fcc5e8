# SPDX-License-Identifier: Apache-2.0
"""JSON and text of files: bounded before they are parsed, and written the same way every time.

Start at `parse_json`. Digests are taken of `canonical_json`; people read `pretty_json`.
"""

import codecs
import json
import math
import re
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from gossamer.errors import ArtifactError, GossamerError, InputError
from gossamer.io.safe_files import (
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    MAX_LINE_BYTES,
    MAX_LINE_VALUES,
    MAX_MANIFEST_BYTES,
)
from gossamer.named_files import read_inside

__all__ = [
    "canonical_json",
    "decode_text",
    "parse_json",
    "parse_json_line",
    "parse_object",
    "pretty_json",
    "read_object",
]

# The mark of UTF-32 begins with that of UTF-16, so it is looked for first.
_OTHERS = (
    ("UTF-32", (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    ("UTF-16", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)


def decode_text(raw: bytes, where: str) -> str:
    r"""The text of `raw`, lines ended by "\n"; InputError says which encoding it is in instead.

    Spreadsheets begin a UTF-8 file with a mark; it is no part of the text.
    """
    for name, marks in _OTHERS:
        if raw.startswith(marks):
            raise InputError(
                f"{where}: is not UTF-8 text but {name}, as some programs save what they call"
                f" Unicode. Save it as UTF-8, or convert it: iconv -f {name} -t UTF-8 FILE > NEW."
            )
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x})."
            " Convert it first: iconv -t UTF-8."
        ) from error
    zero = text.find("\0")
    if zero >= 0:
        raise InputError(
            f"{where}: holds a zero byte (character {zero + 1}), so it is no UTF-8 text. If it is"
            " UTF-16 without a mark, convert it: iconv -f UTF-16LE -t UTF-8 FILE > NEW."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


_OPENING = b"[{"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# 128 bits, as states of random generators have them; any such number is a finite float.
_MAX_DIGITS = 39
# Half of a character beyond the 65536th: text that holds one of them alone cannot be written.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class _Fault(ValueError):
    """What is wrong with a text; the caller knows where it stands."""


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
    try:
        if len(raw) > max_bytes:
            raise _Fault(f"{len(raw)} bytes of JSON; at most {max_bytes} are allowed.")
        _check_count(raw, max_values)
        _check_depth(raw)
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
        if _SURROGATE.search(raw):
            _check_texts(value)
    except UnicodeDecodeError as fault:
        raise error(f"{where}: not UTF-8 at byte {fault.start}.") from fault
    except _Fault as fault:
        raise error(f"{where}: {fault}") from fault
    except (ValueError, RecursionError) as fault:
        raise error(f"{where}: not valid JSON ({str(fault)[:200]}).") from fault
    return value


def parse_object(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object behind `raw`, or ArtifactError."""
    content = parse_json(raw, where)
    if not isinstance(content, dict):
        raise ArtifactError(f"{where}: must be a JSON object.")
    return content


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a named directory, or ArtifactError."""
    return parse_object(read_inside(folder, name, MAX_MANIFEST_BYTES), str(folder / name))


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
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def pretty_json(value: Any) -> bytes:
    """Deterministic JSON for files that people read; a cut anywhere makes it invalid."""
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode("ascii")


def _check_count(raw: bytes, max_values: int) -> None:
    # Before parsing: "[],[],..." turns 3 bytes into an object of 64.
    num_values = sum(map(raw.count, (b",", b"[", b"{", b"\\")))
    # A key and a value of four quotes each is the most that valid JSON has per separator.
    num_values = max(num_values, raw.count(b'"') // 4)
    if num_values > max_values:
        raise _Fault(f"about {num_values} JSON values, more than the {max_values} allowed.")


def _check_depth(raw: bytes) -> None:
    # Without escapes, every second part between quotes lies outside of strings.
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    depth = 0
    for bracket in chain.from_iterable(part.translate(None, _NOT_BRACKETS) for part in parts):
        depth += 1 if bracket in _OPENING else -1
        if depth > MAX_JSON_DEPTH:
            raise _Fault(f"JSON nested deeper than {MAX_JSON_DEPTH} levels.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Fault(f"the key {key[:80]!a} appears twice.")
            seen.add(key)
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Fault(f"the number {text[:40]} is too large.")
    return value


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise _Fault(f"not valid JSON (a number of {len(text)} digits, at most {_MAX_DIGITS}).")
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise _Fault(f"{text} is not valid JSON.")


def _check_texts(value: Any) -> None:
    """Refuse text with half a character, keys included."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise _Fault(f"the text {value[:40]!a} holds half of a surrogate pair, no character.")
    elif isinstance(value, dict | list):
        for item in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
            _check_texts(item)
