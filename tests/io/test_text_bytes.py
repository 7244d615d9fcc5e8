# SPDX-License-Identifier: Apache-2.0
"""Text files with marks and in other encodings; tables and scores that say two things or none."""

import pytest

from gossamer.data.files import check_scores, read_samples
from gossamer.errors import InputError
from gossamer.io.safe_files.documents import decode_text

MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_mark_and_any_end_of_line_are_no_part_of_the_text(newline):
    assert decode_text(MARK + b"one" + newline + "zwölf".encode(), "x") == "one\nzwölf"
    assert decode_text(b"", "x") == ""
    assert decode_text(MARK, "x") == ""


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("a,b".encode("utf-16"), r"x: is not UTF-8 text but UTF-16.*iconv -f UTF-16 -t UTF-8"),
        ("a,b".encode("utf-16-be"), r"x: holds a zero byte \(character 1\)"),
        ("a,b".encode("utf-32"), r"x: is not UTF-8 text but UTF-32"),
        ("zwölf".encode("latin-1"), r"x: is not UTF-8 text \(byte 2 is 0xf6\)"),
        (b"a\0b", r"x: holds a zero byte \(character 2\)"),
    ],
)
def test_other_encodings_are_refused_by_name(raw, message):
    with pytest.raises(InputError, match=message):
        decode_text(raw, "x")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"text_a,text_b,score\none,two,1\nthree,four,2\n"),
        ("a.tsv", b"text_a\ttext_b\tscore\none\ttwo\t1\nthree\tfour\t2\n"),
        ("a.jsonl", b'{"text_a": "one", "text_b": "two", "score": 1}\n'),
        ("a.txt", b"one\ntwo\n"),
    ],
)
def test_files_with_a_mark_are_read_as_without(tmp_path, name, content):
    plain, marked = tmp_path / "plain" / name, tmp_path / "marked" / name
    for path, raw in ((plain, content), (marked, MARK + content)):
        path.parent.mkdir()
        path.write_bytes(raw)
    one, other = read_samples(plain), read_samples(marked)
    assert (one.texts, one.pairs, one.stream) == (other.texts, other.pairs, other.stream)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,Text \na,b\n", r"a\.csv:1: has 2 columns 'text'"),
        ("a.csv", "text_a,text_b,score,score\na,b,1,2\n", r"a\.csv:1: has 2 columns 'score'"),
        ("a.csv", "text\nhello, world\n", r"a\.csv:2: has 2 cells.*1 columns.*quotation marks"),
        ("a.csv", "text_a,text_b,score\na,b,inf\n", r"a\.csv:2: score is inf; expected a finite"),
        ("a.csv", "text_a,text_b,score\na,b,NaN\n", r"a\.csv:2: score is nan"),
        ("a.jsonl", '{"text_a": "a", "text_b": "b", "score": NaN}', r"score is nan|JSON"),
        (
            "a.csv",
            "text_a,text_b,score\na,b,much\n",
            r"score is not a number, got 'much'",
        ),
        ("a.csv", "text_a;text_b;score\na;b;1\n", r"separated by ';' here"),
    ],
)
def test_tables_that_do_not_say_one_thing(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_samples(path)


def test_columns_without_a_name_may_repeat(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,,\nhello,,\n")
    assert read_samples(path).texts == ("hello",)


def test_scores_that_are_all_the_same(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text_a,text_b,score\na,b,2.5\nc,d,2.5\n")
    with pytest.raises(InputError, match=r"a\.csv: all 2 pairs have the score 2\.5"):
        check_scores(read_samples(path))
    path.write_text("text_a,text_b,score\na,b,2.5\nc,d,1\n")
    check_scores(read_samples(path))
    path.write_text("text\na\n")
    check_scores(read_samples(path))
