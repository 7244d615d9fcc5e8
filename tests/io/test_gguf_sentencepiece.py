# SPDX-License-Identifier: Apache-2.0
"""Sentencepiece models in gguf files, beside the algorithm of llama.cpp written down once more."""

import json
import random
from itertools import pairwise

import pytest
from gguf_tools import ARRAY, BOOL, FLOAT32, INT32, STRING, tiny_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import ArtifactError
from gossamer.io import read_beside

tokenizers = pytest.importorskip("tokenizers")

BLANK = "\u2581"
LETTERS = BLANK + "abcdeé"
TEXTS = st.text(alphabet="abcde é<>\n日\x00", max_size=40)


def pieces_of():
    """Unknown, first, last, a byte each, letters, and 150 unions of pieces before them."""
    draw = random.Random(7)  # noqa: S311  (no secret)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(LETTERS)
    known = list(LETTERS)
    while len(known) < 150:
        union = draw.choice(known) + draw.choice(known)
        if union not in known and len(union) < 9:
            known.append(union)
    draw.shuffle(unions := known[len(LETTERS) :])
    pieces += [*unions, "<e>", BLANK * 2]
    kinds += [1] * len(unions) + [4, 4]
    scores = [0.0] * 259 + [-1e4] * len(LETTERS) + [-float(n) for n in range(len(unions))]
    return pieces, kinds, [*scores, -2000.0, -2001.0]


PIECES, KINDS, SCORES = pieces_of()


def with_pieces(**more):
    file = tiny_gguf()
    own = {
        "model": (STRING, "llama"),
        "tokens": (ARRAY, PIECES, STRING),
        "token_type": (ARRAY, KINDS, INT32),
        "scores": (ARRAY, SCORES, FLOAT32),
        **more,
    }
    del file.settings["tokenizer.ggml.pre"], file.settings["tokenizer.ggml.merges"]
    file.settings |= {f"tokenizer.ggml.{name}": value for name, value in own.items()}
    return file


def read(folder, file):
    return tokenizers.Tokenizer.from_str(
        read_beside(file.write(folder / "m.gguf"))["tokenizer.json"].decode()
    )


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return read(tmp_path_factory.mktemp("gguf"), with_pieces())


def merged(text):
    """Best score first, then the first of them; bytes for what is no piece."""
    scores = {p: s for p, s, k in zip(PIECES, SCORES, KINDS, strict=True) if k in (1, 4)}
    parts = list(text.replace(" ", BLANK))
    while True:
        unions = [(scores.get(a + b), a + b) for a, b in pairwise(parts)]
        best = max((score for score, _ in unions if score is not None), default=None)
        if best is None:
            break
        at = next(i for i, (score, _) in enumerate(unions) if score == best)
        parts[at : at + 2] = [unions[at][1]]
    spelt = [[p] if p in scores else [f"<0x{byte:02X}>" for byte in p.encode()] for p in parts]
    return [piece for piece_s in spelt for piece in piece_s]


@given(text=TEXTS.filter(lambda text: text and "<e>" not in text))
@settings(max_examples=300, deadline=None)
def test_pieces_are_merged_as_llama_cpp_merges_them(tokenizer, text):
    assert tokenizer.encode(text).tokens == ["<s>", *merged(" " + text)]


@given(text=TEXTS.filter(lambda text: "<e>" not in text))  # a blank goes behind such a word
@settings(max_examples=200, deadline=None)
def test_texts_come_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_own_words_are_never_taken_apart(tokenizer):
    assert "<e>" in tokenizer.encode("ab<e>cd").tokens


def test_settings_of_the_file(tmp_path):
    file = with_pieces(add_space_prefix=(BOOL, False), add_bos_token=(BOOL, False))
    tokenizer = read(tmp_path, file)
    assert tokenizer.encode("a b").tokens == merged("a b")
    assert tokenizer.decode(tokenizer.encode(" a").ids) == " a"


def test_templates_of_several_names(tmp_path):
    file = with_pieces()
    file.settings["tokenizer.chat_template"] = (STRING, "{{ messages }}")
    file.settings["tokenizer.chat_templates"] = (ARRAY, ["tools"], STRING)
    file.settings["tokenizer.chat_template.tools"] = (STRING, "{{ tools }}")
    content = json.loads(read_beside(file.write(tmp_path / "m.gguf"))["tokenizer_config.json"])
    assert content["chat_template"] == [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tools", "template": "{{ tools }}"},
    ]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("scores", (ARRAY, SCORES[:-1], FLOAT32), "scores must have one finite number"),
        ("scores", (ARRAY, [float("nan"), *SCORES[1:]], FLOAT32), "one finite number"),
        ("scores", (STRING, "x"), "scores must have one finite number"),
        ("token_type", (ARRAY, KINDS[1:], INT32), "token_type must have one"),
        ("add_space_prefix", (INT32, 1), "must be true or false"),
        ("tokens", (ARRAY, ["?", "!", *PIECES[2:]], STRING), None),
    ],
)
def test_pieces_that_cannot_be(tmp_path, key, value, words):
    file = with_pieces(**{key: value})
    if words is None:  # other names are as good
        assert read(tmp_path, file).get_vocab_size() == len(PIECES)
        return
    with pytest.raises(ArtifactError, match=words):
        read_beside(file.write(tmp_path / "m.gguf"))


def test_without_bytes_there_must_be_a_piece_for_what_is_not_known(tmp_path):
    pieces = ["?" if piece == "<0x00>" else piece for piece in PIECES]
    file = with_pieces(tokens=(ARRAY, pieces, STRING))
    assert read(tmp_path, file).encode("日").tokens[-1] == "<unk>"
    kinds = [1, *KINDS[1:]]
    file = with_pieces(tokens=(ARRAY, pieces, STRING), token_type=(ARRAY, kinds, INT32))
    with pytest.raises(ArtifactError, match="not every text could be written"):
        read_beside(file.write(tmp_path / "m.gguf"))
