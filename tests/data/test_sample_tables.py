# SPDX-License-Identifier: Apache-2.0
"""Tables and JSON lines of texts, pairs and labels."""

import pytest

from gossamer.data.files import read_samples
from gossamer.errors import InputError


def _file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'label,text\n1,"good, ""very"""\n0,bad\n'),
        ("a.tsv", 'text\tlabel\ngood, "very"\t1\nbad\t0\n'),
        ("a.jsonl", '{"text": "good, \\"very\\"", "label": 1}\n\n{"text": "bad", "label": 0}\n'),
    ],
)
def test_texts_with_labels(tmp_path, name, text):
    found = read_samples(_file(tmp_path, name, text), labelled=True)
    assert found.texts == ('good, "very"', "bad")
    assert found.labels == (1, 0)
    assert read_samples(found.path).labels == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "sentence1,sentence2,score\na,b,4.5\nc,d,1\n"),
        ("a.tsv", "score\ttext_a\ttext_b\textra\n4.5\ta\tb\tx\n1\tc\td\n"),
        ("a.jsonl", '{"text_a": "a", "text_b": "b", "score": 4.5}\n'
                    '{"text_a": "c", "text_b": "d", "score": 1}\n'),
    ],
)  # fmt: skip
def test_pairs_with_scores(tmp_path, name, text):
    found = read_samples(_file(tmp_path, name, text))
    assert [(p.first, p.second, p.score) for p in found.pairs] == [("a", "b", 4.5), ("c", "d", 1)]
    assert found.texts == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "expected a column text or sentence"),
        ("a.csv", "text,label\na,one\n", "a.csv:2: label must be a whole number"),
        ("a.csv", "text,label\na,-1\n", "a.csv:2: label must be"),
        ("a.csv", 'text,label\n"a,1\n', "is no table"),
        ("a.csv", "text_a,text_b,score\na,b,good\n", "a.csv:2: score is not a number"),
        ("a.csv", "text_a,text_b,score\na,,1\n", "has no text in column 'text_b'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', "1 of 2 texts have a label"),
        ("a.jsonl", '{"text": 5}\n', "has no text"),
        ("a.jsonl", "[]\n", "expected {"),
        ("a.xls", "x", "expected a file that ends with"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_samples(_file(tmp_path, name, text), labelled=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "a", "label": "' + "x" * 70_000 + '"}'),
        ("a.csv", "x" * 70_000 + ",b\n1,2\n"),
        ("a.jsonl", "[" * 70_000),
        ("a.jsonl", '{"text": "\\ud800"}'),
        ("a.jsonl", '{"text_a": "a", "text_b": "b", "score": ' + "9" * 400 + "}"),
    ],
)
def test_odd_content_is_refused_in_few_words(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name}:1: ") as caught:
        read_samples(tmp_path / name, labelled=True)
    assert len(str(caught.value)) < 1000


def test_a_line_may_hold_other_ends_of_lines(tmp_path):
    """U+2028 and the like end a line for Python, but not for JSON."""
    (tmp_path / "a.jsonl").write_text('{"text": "a\u2028b"}\r\n{"text": "c\x85d"}\n')
    assert read_samples(tmp_path / "a.jsonl").texts == ("a\u2028b", "c\x85d")
