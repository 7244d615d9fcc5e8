# SPDX-License-Identifier: Apache-2.0
"""Texts to vectors: against a plain transformers forward in float64, one text at a time."""

import json

import numpy as np
import pytest
import torch
from text_models import POSITIONS, WORDS, sentences

import gossamer
from gossamer.cli.run.vectors import open_vectors
from gossamer.errors import InputError
from gossamer.io import load, read_beside
from gossamer.running.text import Classifier, Embedder, TextTokens
from gossamer.zoo import MLP

TEXTS = [*sentences(70, seed=3), "the", "the dog nobody knows"]


@pytest.fixture(scope="module")
def embedder(encoder_folder):
    return Embedder(load(encoder_folder), read_beside(encoder_folder))


def oracle(folder, texts, pooling="mean", normalise=True):
    """Unpadded forwards in float64."""
    model = load(folder).double()
    tokenizer = TextTokens(read_beside(folder), model.config).tokenizer
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            hidden = model(input_ids=ids).last_hidden_state[0]
        row = hidden[0] if pooling == "cls" else hidden.mean(0)
        rows.append(row / row.norm() if normalise else row)
    return torch.stack(rows)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_vectors_are_those_of_each_text_alone(encoder_folder, pooling, normalise, batch):
    embed = Embedder(
        load(encoder_folder), read_beside(encoder_folder), pooling=pooling, normalise=normalise
    )
    found = embed(TEXTS, batch)
    torch.testing.assert_close(
        found.double(), oracle(encoder_folder, TEXTS, pooling, normalise), rtol=1e-4, atol=1e-5
    )


def test_pieces_keep_the_order_across_sorted_groups(embedder, monkeypatch):
    monkeypatch.setattr("gossamer.running.text.embedding._SORTED_BATCHES", 2)
    parts = list(embedder.encode(TEXTS, batch=5))
    assert [len(part.vectors) for part in parts[:-1]] == [10] * (len(parts) - 1)
    torch.testing.assert_close(torch.cat([p.vectors for p in parts]), embedder(TEXTS))


def test_no_texts_give_no_vectors(embedder):
    assert embedder([]).shape == (0, 32)


def test_a_pruned_compiled_model_is_used_as_it_is(encoder_folder, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model = load(encoder_folder)
    gossamer.sparsify(model, sparsity=0.5, targets=["encoder.layer.*"])
    fast = gossamer.compile(model, tokens=(64,))
    beside = read_beside(encoder_folder)
    torch.testing.assert_close(
        Embedder(fast, beside)(TEXTS), Embedder(model, beside)(TEXTS), rtol=1e-4, atol=1e-5
    )


def test_long_texts_are_cut_with_their_special_tokens(embedder):
    long = " ".join(WORDS * 10)
    (ids,), num_cut = embedder.tokens.cut([long])
    assert num_cut == 1
    assert len(ids) == POSITIONS
    assert (int(ids[0]), int(ids[-1])) == (2, 3)
    part = next(embedder.encode(["the dog", long]))
    assert (part.num_cut, part.num_tokens) == (1, 4 + POSITIONS)


@pytest.mark.parametrize("length", [POSITIONS - 2, POSITIONS - 1])
def test_the_limit_counts_special_tokens(embedder, length):
    text = " ".join(["dog"] * length)
    if length + 2 <= POSITIONS:
        assert len(embedder.tokens.whole([text])[0]) == POSITIONS
    else:
        with pytest.raises(InputError, match=r"text\[0\]: has 49 tokens; expected at most 48"):
            embedder.tokens.whole([text])


@pytest.mark.parametrize(
    ("ids", "text"),
    [([], "no tokens"), ([-1], "between 0 and 18"), ([19], "got 19"), ([1] * 49, "at most 48")],
)
def test_token_numbers_are_checked(embedder, ids, text):
    with pytest.raises(InputError, match=text):
        embedder.tokens.checked(ids, "input")


@pytest.mark.parametrize("most", [2, POSITIONS + 1])
def test_impossible_limits_are_refused(encoder_folder, most):
    with pytest.raises(InputError, match="max_tokens must be between 3 and the 48 positions"):
        Embedder(load(encoder_folder), read_beside(encoder_folder), max_tokens=most)


def test_a_model_without_tokenizer_or_hidden_states_is_refused(encoder_folder):
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        Embedder(load(encoder_folder), {})
    with pytest.raises(InputError, match="is no transformers model"):
        Embedder(MLP((4, 4)), read_beside(encoder_folder))
    with pytest.raises(InputError, match="pooling must be one of mean, cls, max"):
        Embedder(load(encoder_folder), read_beside(encoder_folder), pooling="median")


def test_scores_of_a_classifier(classifier_folder):
    model = load(classifier_folder)
    classifier = Classifier(model, read_beside(classifier_folder))
    ids = classifier.tokens.whole(TEXTS)
    found = classifier.scores(ids)
    assert classifier.labels == ("good", "bad", "odd")
    for row, text_ids in zip(found, ids, strict=True):
        with torch.no_grad():
            alone = model(input_ids=text_ids.unsqueeze(0)).logits.softmax(1)[0]
        torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-5)


def test_an_encoder_is_no_classifier(encoder_folder):
    with pytest.raises(InputError, match="ForSequenceClassification"):
        Classifier(load(encoder_folder), read_beside(encoder_folder))


def test_vector_files_hold_exactly_what_was_written(tmp_path):
    vectors = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for name in ("v.npy", "v.jsonl"):
        with open_vectors(tmp_path / name, 5) as write:
            write(["a", "b"], vectors[:2])
            write(["c", "d\n", "\u00fc"], vectors[2:])
    assert np.array_equal(np.load(tmp_path / "v.npy", allow_pickle=False), vectors.numpy())
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == ["a", "b", "c", "d\n", "\u00fc"]
    found = np.array([line["vector"] for line in lines], dtype=np.float32)
    assert np.array_equal(found, vectors.numpy())


def test_a_vector_file_is_complete_or_as_it_was(tmp_path):
    target = tmp_path / "v.npy"
    target.write_bytes(b"old")

    def write_badly():
        with open_vectors(target, 2) as write:
            write(["a"], torch.zeros(1, 3))
            write(["b"], torch.full((1, 3), torch.nan))

    with pytest.raises(InputError, match="NaN or infinite"):
        write_badly()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
