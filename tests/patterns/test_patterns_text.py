# SPDX-License-Identifier: Apache-2.0
"""Text to pattern and back."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import PatternError
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured, parse_pattern
from gossamer.patterns.syntax import read_builtin
from gossamer.patterns.text import PATTERNS

CANONICAL = {
    "unstructured": Unstructured(),
    "2:4": NM(2, 4),
    "1:1": NM(1, 1),
    "32:32": NM(32, 32),
    "64:2:8": VNM(64, 8),
    "1:2:256": VNM(1, 256),
    "nmg:2:4:16": NMG(2, 4, 16),
    "block:1x1": Block(1, 1),
    "block:16x4": Block(16, 4),
}


@pytest.mark.parametrize("text", CANONICAL)
def test_parse_and_print_are_inverse(text):
    pattern = parse_pattern(text)
    assert pattern == CANONICAL[text]
    assert str(pattern) == text
    assert hash(pattern) == hash(parse_pattern(text))


def test_patterns_with_other_text_differ():
    assert len(set(CANONICAL.values())) == len(CANONICAL)


@settings(deadline=None, max_examples=50)
@given(numbers=st.tuples(st.integers(1, 32), st.integers(1, 32)))
def test_every_legal_nm_round_trips(numbers):
    kept, group = min(numbers), max(numbers)
    assert parse_pattern(f"{kept}:{group}") == NM(kept, group)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("2:4:", "64:2:8"),
        ("5:4", "1 <= N <= M <= 32"),
        ("0:4", "1 <= N <= M <= 32"),
        ("2:33", "1 <= N <= M <= 32"),
        ("2:", "2:4"),
        ("2", "2:4"),
        ("-2:4", "legal are"),
        ("2:4 ", "2:4"),
        ("2.0:4", "2:4"),
        ("4x4", "2:4"),
        ("1:2:3:4", "N:M"),
        ("64:1:8", "N = 2"),
        ("64:2:3", "4 <= M <= 256"),
        ("64:2:257", "4 <= M <= 256"),
        ("0:2:8", "V >= 1"),
        ("block:0x4", "R >= 1"),
        ("block:4", "block:RxC"),
        ("block:4x4x4", "block:RxC"),
        ("block:-4x4", "block:RxC"),
        ("nmg:2:4", "nmg:n:m:g"),
        ("nmg:5:4:1", "1 <= n <= m"),
        ("nmg:2:4:0", "g >= 1"),
        ("nmg:8:16:1", "at most 256 ways"),
        ("nmg:2:4:99999", "smaller g"),
        ("unstructured:2", "nothing else"),
        ("Unstructured", "Did you mean 'unstructured'"),
        ("blok:4x4", "Did you mean 'block'"),
        ("", "legal are"),
        ("9999999:2:8", "V >= 1"),
    ],
)
def test_garbage_is_refused_with_what_is_legal(text, hint):
    with pytest.raises(PatternError, match="pattern ") as caught:
        parse_pattern(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize("value", [None, 4, (2, 4), NM(2, 4)])
def test_only_text_is_parsed(value):
    with pytest.raises(PatternError, match="expected text"):
        parse_pattern(value)


def test_unknown_name_prints_the_stub_to_write():
    with pytest.raises(
        PatternError, match=r'gossamer.register.pattern\("diagonal", MyPattern.parse'
    ):
        parse_pattern("diagonal:3")


def test_a_plugin_is_parsed_by_its_name():
    PATTERNS.add("everything", lambda text: Unstructured())
    try:
        assert parse_pattern("everything:really") == Unstructured()
    finally:
        PATTERNS.remove("everything")
    with pytest.raises(PatternError):
        parse_pattern("everything:really")


@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet="0123456789:xblockngmu ", max_size=14))
def test_any_text_gives_a_pattern_or_a_pattern_error(text):
    try:
        pattern = parse_pattern(text)
    except PatternError:
        return
    assert parse_pattern(str(pattern)) == pattern


@settings(deadline=None, max_examples=200)
@given(
    text=st.one_of(
        st.from_regex(r"(nmg:|block:)?[0-9]{1,3}([:x][0-9]{1,3}){0,3}", fullmatch=True),
        st.sampled_from([*CANONICAL, "unstructured:2", "02:04", "blok:4x4", "", ":"]),
    )
)
def test_the_syntax_without_torch_agrees_with_the_classes(text):
    try:
        expected = parse_pattern(text)
    except PatternError:
        expected = None
    try:
        found = read_builtin(text)
    except PatternError:
        found = None
    if expected is None:
        assert found is None
    else:
        assert found == (str(expected), expected.fixed_density)


def test_the_package_is_lazy_and_complete():
    probe = (
        "import sys, gossamer.patterns.syntax; before = 'torch' in sys.modules;"
        "from gossamer.patterns import *; print(before, NM(2, 4), hasattr(gossamer.patterns, 'x'))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False 2:4 False\n", done.stderr
