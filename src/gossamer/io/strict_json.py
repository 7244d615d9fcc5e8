# SPDX-License-Identifier: Apache-2.0
"""JSON as untrusted input: bounded size, depth and count, no duplicate keys, no NaN.

`canonical_json` is the one text that digests are taken of.
"""

import json
import math
import re
from typing import Any, NoReturn

from gossamer.errors import ArtifactError
from gossamer.io.limits import MAX_JSON_DEPTH, MAX_JSON_VALUES

# The characters that matter for nesting. A pattern that matched whole strings would need memory
# in proportion to the longest one.
_TOKENS = re.compile(rb'[\[\]{}"]|\\.', re.DOTALL)


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
    """Deterministic JSON for files that people read."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def _check_count(raw: bytes, where: str) -> None:
    # Before parsing: "[],[],..." turns 3 bytes into an object of 64.
    num_values = sum(raw.count(token) for token in (b",", b"[", b"{", b"\\"))
    if num_values > MAX_JSON_VALUES:
        raise ArtifactError(
            f"{where}: about {num_values} JSON values, more than the {MAX_JSON_VALUES} allowed."
        )


def _check_depth(raw: bytes, where: str) -> None:
    depth = 0
    in_string = False
    for token in _TOKENS.finditer(raw):
        first = token.group()[:1]
        if first == b'"':
            in_string = not in_string
        elif not in_string and first in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise ArtifactError(f"{where}: JSON nested deeper than {MAX_JSON_DEPTH} levels.")
        elif not in_string and first in b"]}":
            depth -= 1


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
