# SPDX-License-Identifier: Apache-2.0
"""JSON as untrusted input: bounded size, depth and count, no duplicate keys, no NaN.

`canonical_json` is the one text that digests are taken of.
"""

import json
import math
from itertools import chain
from typing import Any, NoReturn

from gossamer.errors import ArtifactError
from gossamer.io.limits import MAX_JSON_DEPTH, MAX_JSON_VALUES

_OPENING = b"[{"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_json(raw: bytes, where: str, *, max_bytes: int) -> Any:
    """The value behind `raw`, or ArtifactError saying what is wrong with it."""
    if len(raw) > max_bytes:
        raise ArtifactError(f"{where}: {len(raw)} bytes of JSON; at most {max_bytes} are allowed.")
    _check_count(raw, where)
    _check_depth(raw, where)
    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=lambda pairs: _unique(pairs, where),
            parse_constant=lambda text: _refuse_constant(text, where),
            parse_float=lambda text: _finite(text, where),
        )
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{where}: not UTF-8 at byte {error.start}.") from error
    except (ValueError, RecursionError) as error:
        detail = str(error)[:200]
        raise ArtifactError(f"{where}: not valid JSON ({detail}).") from error


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


def _check_count(raw: bytes, where: str) -> None:
    # Before parsing: "[],[],..." turns 3 bytes into an object of 64.
    num_values = sum(raw.count(token) for token in (b",", b"[", b"{", b"\\"))
    # A key and a value of four quotes each is the most that valid JSON has per separator.
    num_values = max(num_values, raw.count(b'"') // 4)
    if num_values > MAX_JSON_VALUES:
        raise ArtifactError(
            f"{where}: about {num_values} JSON values, more than the {MAX_JSON_VALUES} allowed."
        )


def _check_depth(raw: bytes, where: str) -> None:
    # Without escapes, every second part between quotes lies outside of strings.
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    depth = 0
    for bracket in chain.from_iterable(part.translate(None, _NOT_BRACKETS) for part in parts):
        depth += 1 if bracket in _OPENING else -1
        if depth > MAX_JSON_DEPTH:
            raise ArtifactError(f"{where}: JSON nested deeper than {MAX_JSON_DEPTH} levels.")


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ArtifactError(f"{where}: the key {key[:80]!a} appears twice.")
            seen.add(key)
    return result


def _finite(text: str, where: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ArtifactError(f"{where}: the number {text[:40]} is too large.")
    return value


def _refuse_constant(text: str, where: str) -> NoReturn:
    raise ArtifactError(f"{where}: {text} is not valid JSON.")
