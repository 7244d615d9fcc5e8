# SPDX-License-Identifier: Apache-2.0
"""JSON from strangers: what is refused, and that nothing large is built first."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.documents import (
    canonical_json,
    parse_json,
    parse_json_line,
    pretty_json,
)

LIMIT = 1 << 20


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"x": {"b": 1, "b": 1}}', "'b' appears twice"),
        (b"[" * 33 + b"]" * 33, "deeper than 32"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "deeper than 32"),
        (b"[" * 500_000, "deeper than 32"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e999]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "not valid JSON"),
        (b'["\xff"]', "not UTF-8"),
        (b"[" + b"[]," * (1 << 20) + b"[]]", "JSON values"),
        (b'"' + b"\\n" * (1 << 21) + b'"', "JSON values"),
        (b" " * (LIMIT + 1), "at most"),
        (b"[" + b"9" * 40 + b"]", "not valid JSON"),
        (rb'["\ud800"]', "half of a surrogate pair"),
        (rb'{"a": [{"\uDFFF": 1}]}', "half of a surrogate pair"),
        (rb'["\ud83d\ude00\ud83d"]', "half of a surrogate pair"),
    ],
)
def test_refused(raw, text):
    limit = LIMIT if text == "at most" else 1 << 26
    with pytest.raises(ArtifactError, match=text):
        parse_json(raw, "file", max_bytes=limit)


def test_whole_characters_and_large_numbers_are_read():
    raw = rb'["\ud83d\ude00", "\\ud800", 340282366920938463463374607431768211455, -1]'
    assert parse_json(raw, "file", max_bytes=LIMIT) == ["\U0001f600", r"\ud800", 2**128 - 1, -1]


def test_lines_of_users_are_refused_as_inputs():
    assert parse_json_line('{"text": "a"}', "f:1") == {"text": "a"}
    for line in ("[" * 100_000, '{"a": 1, "a": 2}', '"\\ud800"', "{", "NaN"):
        with pytest.raises(InputError, match=r"^f:3: "):
            parse_json_line(line, "f:3")


def test_brackets_and_quotes_inside_strings_do_not_count():
    text = '[{"' + "[{" * 50 + r"\"[[\\" + '": 1}]'
    assert parse_json(text.encode(), "file", max_bytes=LIMIT) == json.loads(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_canonical_text_reads_back_and_is_unique(value):
    raw = canonical_json(value)
    again = parse_json(raw, "file", max_bytes=LIMIT)
    assert canonical_json(again) == raw
    assert parse_json(pretty_json(value), "file", max_bytes=LIMIT) == again


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_give_a_value_or_our_error(raw):
    with suppress(ArtifactError):
        parse_json(raw, "file", max_bytes=LIMIT)
