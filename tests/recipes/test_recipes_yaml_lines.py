# SPDX-License-Identifier: Apache-2.0
"""YAML as untrusted input: what is read, what is refused, and the line of everything."""

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import RecipeError
from gossamer.recipes.yaml_lines import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    parse_value,
    parse_yaml,
    read_scalar,
)


def refused(raw):
    with pytest.raises(RecipeError) as caught:
        parse_yaml(raw, "r.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("0", 0),
        ("-7", -7),
        ("010", 10),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e-3", 0.001),
        ("1e999", math.inf),
        (".inf", math.inf),
        ("2:4", "2:4"),
        ("64:2:8", "64:2:8"),
        ("2024-01-02", "2024-01-02"),
        ("9" * 30, "9" * 30),
        (".", "."),
        ("e5", "e5"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text, value):
    found = read_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number_and_quotes_make_text():
    assert math.isnan(read_scalar(".nan"))
    document = parse_yaml(b"a: '0.5'\nb: \"null\"\nc: |\n  1\n", "r.yaml")
    assert document.data == {"a": "0.5", "b": "null", "c": "1\n"}


def test_every_value_knows_its_line():
    raw = b"# comment\na: 1\nb:\n  - x\n  - c: 2\n    d: {e: 3,\n        f: 4}\n"
    document = parse_yaml(raw, "r.yaml")
    assert document.data == {"a": 1, "b": ["x", {"c": 2, "d": {"e": 3, "f": 4}}]}
    assert document.lines == {
        (): 2,
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 4,
        ("b", 1): 5,
        ("b", 1, "c"): 5,
        ("b", 1, "d"): 6,
        ("b", 1, "d", "e"): 6,
        ("b", 1, "d", "f"): 7,
    }
    # A place that does not exist gets the line of what would hold it.
    assert str(document.fault(("b", 1, "d", "g"), "no.")) == "r.yaml:6 b[1].d.g: no."


@pytest.mark.parametrize("raw", [b"", b"# only a comment\n", b"---\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_nothing(raw):
    assert parse_yaml(raw, "r.yaml").data is None


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"a: &x 1\nb: *x\n", "r.yaml:1: YAML anchors and aliases"),
        (b"a: 1\nb: *x\n", "r.yaml:2: YAML anchors and aliases"),
        (b"a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "anchors and aliases"),
        (b"a: !!python/object/apply:os.system ['true']\n", "python/object/apply:os.system"),
        (b"a: !!python/name:os.system\n", "such files are plain data"),
        (b"a: ! x\n", "the YAML tag"),
        (b"!!map\na: 1\n", "the YAML tag"),
        (b"a: 1\nb: 2\na: 3\n", "r.yaml:3 a: the key stands here twice, first in line 1"),
        (b"a: {b: 1, b: {c: 2}}\n", "r.yaml:1 a.b: the key stands here twice"),
        (b"a: 1\n---\nb: 2\n", "r.yaml:2: holds a second YAML document"),
        (b"? [a, b]\n: 1\n", "a key must be a word"),
        (b"a: [1, 2\n", "is not valid YAML"),
        (b"a: b: c\n", "r.yaml:1: is not valid YAML: mapping values are not allowed here. Quote"),
        (b"a:\n\t- b\n", "r.yaml:2: is not valid YAML"),
        (b"a: 1\nb: \xff\n", "r.yaml:2: is not UTF-8 at byte 8"),
        ("a: 1\n".encode("utf-16"), "is not UTF-8 at byte 0"),
        (b"a: 1\nb: \x07\n", "r.yaml:2: has the character U+0007"),
        (b"a: \x00\n", "U+0000"),
        (b"%YAML 3.0\n---\na: 1\n", "is not valid YAML"),
        (b"x" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
        (b"[" * 5000, f"deeper than {MAX_DEPTH} levels"),
        (b"- " * 5000 + b"x", f"deeper than {MAX_DEPTH} levels"),
        (b"{a: " * 5000, f"deeper than {MAX_DEPTH} levels"),
        (b"[" + b"1," * (MAX_VALUES + 1) + b"]", f"more than {MAX_VALUES} values"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_no_recipe_needs_is_refused(raw, words):
    assert words in refused(raw)


def test_all_duplicate_keys_are_told_at_once():
    text = refused(b"a: 1\na: 2\nb: 1\nb: 2\n")
    assert text.splitlines()[0].startswith("r.yaml:2 a:")
    assert text.splitlines()[1].startswith("r.yaml:4 b:")


def test_keys_that_are_no_text_become_text():
    assert parse_yaml(b"1: a\nnull: b\ntrue: c\n", "r").data == {"1": "a", "None": "b", "True": "c"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.7", 0.7), ("2:4", "2:4"), ("[a, 're:b']", ["a", "re:b"]), ("", None), ("null", None)],
)
def test_values_on_the_command_line_are_read_as_in_a_file(text, value):
    assert parse_value(text) == value


def read_or_refuse(raw):
    """Anything but a RecipeError fails the test."""
    with contextlib.suppress(RecipeError):
        parse_yaml(raw, "r.yaml")


@settings(deadline=None, max_examples=300)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw):
    read_or_refuse(raw)


@settings(deadline=None, max_examples=300)
@given(text=st.text(alphabet="ab:-[]{}&*!?|>'\"#%@`$,\n \t01.", max_size=60))
def test_any_yaml_like_text_is_read_or_refused(text):
    read_or_refuse(text.encode())
