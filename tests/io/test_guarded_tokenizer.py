# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that fail: whatever the package raises, a GossamerError comes out."""

import base64
import json
import sys
from pathlib import Path

import pytest

from gossamer.cli.main import main
from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.tokenizer import GuardedTokenizer, guarded, make_tokenizer

pytest.importorskip("tokenizers")
sys.path.append(str(Path(__file__).parents[1] / "running"))
from text_models import save_encoder, word_tokenizer

from gossamer.running.text import TextPieces


class Panic(BaseException):
    """What a panic in Rust is to Python."""


def content(**changes):
    return json.dumps(json.loads(word_tokenizer().to_str()) | changes).encode()


@pytest.fixture
def panicking():
    """It is read, and panics when it is used: a special token that is not there."""
    found = json.loads(word_tokenizer().to_str())
    found["post_processor"]["special_tokens"] = {}
    return json.dumps(found).encode()


def test_a_good_one_is_the_same_through_the_door():
    plain, through = word_tokenizer(), make_tokenizer(content())
    assert through.encode("the dog").ids == plain.encode("the dog").ids
    assert [e.ids for e in through.encode_batch(["a", "cat"])] == [
        e.ids for e in plain.encode_batch(["a", "cat"])
    ]
    assert through.get_vocab_size() == plain.get_vocab_size()
    assert through.token_to_id("dog") == plain.token_to_id("dog")
    assert through.to_str() == plain.to_str()
    through.encode_special_tokens = True
    assert through.inner.encode_special_tokens is True
    with pytest.raises(AttributeError):
        through.nothing_like_it  # noqa: B018
    texts = []
    for tokenizer in (plain, through):
        pieces = TextPieces(tokenizer)
        texts.append([pieces.add(number) for number in plain.encode("the dog").ids])
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b"null", b"\xff", b'{"version": "1.0"}', b'{"a":' * 100_000]
)
def test_no_tokenizer(raw):
    with pytest.raises(InputError, match=r"tokenizer\.json: is no tokenizer.*published"):
        make_tokenizer(raw)


def test_a_panic_while_it_is_used(panicking, capfd):
    tokenizer = make_tokenizer(panicking)
    for use in (lambda: tokenizer.encode("the dog"), lambda: tokenizer.encode_batch(["a", "cat"])):
        with pytest.raises(ArtifactError, match=r"tokenizer\.json: fails .*published"):
            use()


def test_a_panic_while_it_is_read(monkeypatch):
    def panic(raw):
        raise Panic("index out of bounds")

    monkeypatch.setattr("tokenizers.Tokenizer.from_buffer", panic, raising=False)
    monkeypatch.setattr("tokenizers.Tokenizer", type("T", (), {"from_buffer": panic}))
    with pytest.raises(InputError, match="index out of bounds"):
        make_tokenizer(content())


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_goes_through(kind):
    def stop():
        raise kind

    with pytest.raises(kind):
        guarded(stop)


def test_text_that_cannot_be_encoded():
    with pytest.raises(InputError, match="text: the tokenizer does not take it"):
        make_tokenizer(content()).encode("a \ud800 b")


def test_a_panic_elsewhere_is_no_traceback(monkeypatch, capsys):
    def panic(*args, **options):
        raise Panic("somewhere in Rust")

    monkeypatch.setattr("gossamer.cli.main.cli.main", panic)
    assert main(["doctor"]) == 1
    assert "somewhere in Rust" in capsys.readouterr().err


def test_tokens_that_the_model_does_not_have():
    tokenizer = GuardedTokenizer(word_tokenizer(), known_tokens=6)
    assert tokenizer.encode("a the").ids
    with pytest.raises(ArtifactError, match=r"gives the token 7, but the model has tokens 0 to 5"):
        tokenizer.encode("cat")
    with pytest.raises(ArtifactError, match="published with the model"):
        tokenizer.encode_batch(["a", "cat"])


def replacement(text, by):
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "Sequence", "normalizers": [replacement("a", "aa")] * 30},
        replacement("a", "b" * 1000),
        {"type": "Replace", "pattern": {"Regex": ""}, "content": "b" * 100},
        {"type": "Sequence", "normalizers": [
            {"type": "Sequence", "normalizers": [replacement("a", "aaaa")] * 3}] * 3},
    ],
)  # fmt: skip
def test_replacements_that_fill_the_memory(rule):
    with pytest.raises(ArtifactError, match="times as long"):
        make_tokenizer(content(normalizer=rule))


def character_map(size, words):
    raw = size.to_bytes(4, "little") + bytes(4 * words) + b"a\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        character_map(2**32 - 4, 2),
        character_map(12, 2),
        character_map(6, 2),
        {"type": "Precompiled", "precompiled_charsmap": "xxxx" * 1000},
        {"type": "Precompiled", "precompiled_charsmap": "no base64!"},
        {"type": "Precompiled", "precompiled_charsmap": [7]},
    ],
)
def test_maps_of_characters_that_announce_too_much(rule, deep):
    """The package reserves what is announced: 4 GB, or the end of the process."""
    raw = content(normalizer={"type": "Sequence", "normalizers": [rule]} if deep else rule)
    hidden = raw.replace(b"Precompiled", rb"Precompil\u0065d").replace(
        b"charsmap", rb"ch\u0061rsmap"
    )
    for each in (raw, hidden):
        with pytest.raises(ArtifactError, match="announces more than it holds"):
            make_tokenizer(each)


def test_a_whole_map_of_characters_is_taken():
    assert make_tokenizer(content(normalizer=character_map(4 * 300, 300))).encode("the dog").ids


def test_ordinary_replacements_are_taken():
    rule = {"type": "Sequence", "normalizers": [replacement("``", '"'), replacement(" ", "▁")]}
    assert make_tokenizer(content(normalizer=rule)).encode("the dog").ids


def test_commands_tell_it_in_one_line(tmp_path, panicking, capfd):
    folder = save_encoder(tmp_path / "model")
    (folder / "tokenizer.json").write_bytes(panicking)
    data = tmp_path / "data.txt"
    data.write_text("the dog runs\n" * 40)
    out = str(tmp_path / "out.npy")
    assert main(["run", "encode", str(folder), str(data), "-o", out]) == 3
    assert "gossamer: tokenizer.json: fails" in capfd.readouterr().err
