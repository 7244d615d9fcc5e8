# SPDX-License-Identifier: Apache-2.0
"""A whole search on a tiny encoder: made, measured, chosen, resumed, refused."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel

import gossamer
from gossamer.errors import ArtifactError, InputError
from gossamer.search import shrinking, trial
from gossamer.search.candidates import Candidate, one_shot
from gossamer.search.workload import make_workload

WORDS = ("red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps", "eats", "fast")


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{word: 2 + i for i, word in enumerate(WORDS)}}
    made = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=160, initializer_range=0.5,
    )  # fmt: skip
    return BertModel(config).eval()


@pytest.fixture
def sentences(tmp_path):
    generator = torch.Generator().manual_seed(0)
    lines = [
        " ".join(WORDS[i] for i in torch.randint(0, 10, (5,), generator=generator))
        for _ in range(80)
    ]
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def few_ideas(monkeypatch):
    monkeypatch.setattr(shrinking, "SPARSITIES", (0.5, 0.9))
    monkeypatch.setattr(shrinking, "_SHORT", 3)
    monkeypatch.setattr(shrinking, "_LONG", 4)
    monkeypatch.setattr(trial, "_TIMED_SECONDS", 0.01)


def search(model, sentences, tokenizer, out, **options):
    return gossamer.shrink(model, sentences, out, tokenizer=tokenizer, **options)


def test_a_search_makes_measures_and_chooses(model, sentences, tokenizer, tmp_path, few_ideas):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen = []
    result = search(
        model, sentences, tokenizer, tmp_path / "out", max_loss=0.5,
        on_trial=lambda done: seen.append(done.candidate),
    )  # fmt: skip
    assert seen[:4] == ["dense", "slim-50", "oneshot-50", "oneshot-90"]
    assert result.met
    assert result.chosen.lost <= 0.5
    assert result.points[0].name == "dense fp32"
    assert abs(result.points[0].lost) < 1e-6
    assert {p.name for p in result.front} <= {p.name for p in result.points}
    # The dense model is untouched, and the artifact is the one that was measured.
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    gossamer.load(result.path)
    json.dumps(result.to_dict())


def test_a_stopped_search_goes_on_to_the_same_result(
    model, sentences, tokenizer, tmp_path, few_ideas, monkeypatch
):
    out = tmp_path / "out"
    whole = search(model, sentences, tokenizer, tmp_path / "other", max_loss=0.5)

    def dies(self, candidate, path):
        if candidate.name == "oneshot-90":
            raise KeyboardInterrupt
        return made(self, candidate, path)

    made = trial.Workshop._make
    monkeypatch.setattr(trial.Workshop, "_make", dies)
    with pytest.raises(KeyboardInterrupt):
        search(model, sentences, tokenizer, out, max_loss=0.5)
    monkeypatch.setattr(trial.Workshop, "_make", made)
    result = search(model, sentences, tokenizer, out, max_loss=0.5)
    same = {p.name: round(p.quality, 5) for p in whole.points if "recovered" not in p.name}
    assert same == {p.name: round(p.quality, 5) for p in result.points if "recovered" not in p.name}
    # Everything is known now: nothing is made again.
    monkeypatch.setattr(trial.Workshop, "_make", None)
    again = search(model, sentences, tokenizer, out, max_loss=0.5)
    assert again.chosen == result.chosen


def test_no_loss_allowed_means_stay_dense(model, sentences, tokenizer, tmp_path, few_ideas):
    result = search(model, sentences, tokenizer, tmp_path / "out", max_loss=1e-7)
    assert result.met
    assert result.stay_dense


def test_an_impossible_latency_gives_the_nearest(model, sentences, tokenizer, tmp_path, few_ideas):
    result = search(model, sentences, tokenizer, tmp_path / "out", max_ms=1e-9)
    assert not result.met


def test_no_time_means_dense_only(model, sentences, tokenizer, tmp_path, few_ideas):
    result = search(model, sentences, tokenizer, tmp_path / "out", budget_minutes=1e-9)
    assert result.out_of_time
    assert {p.candidate for p in result.points} == {"dense"}


def test_another_search_in_the_folder_is_refused(model, sentences, tokenizer, tmp_path, few_ideas):
    search(model, sentences, tokenizer, tmp_path / "out", budget_minutes=1e-9)
    other = tmp_path / "other.txt"
    other.write_text(sentences.read_text() + "\nred cat\n")
    with pytest.raises(InputError, match="belongs to another run: data was"):
        search(model, other, tokenizer, tmp_path / "out")


def test_a_folder_that_is_no_artifact_is_left_alone(model, sentences, tokenizer, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years")
    with pytest.raises(ArtifactError, match="not a gossamer artifact"):
        search(model, sentences, tokenizer, out)
    assert (out / "thesis.txt").read_text() == "years"
    assert not (tmp_path / "mine.work").exists()


def test_pruned_models_are_measured_compiled(model, sentences, tokenizer, tmp_path, few_ideas):
    seen = []

    def measure(fast):
        seen.append({type(module).__name__ for module in fast.modules()})
        return 1.0

    work = make_workload(model, tokenizer, shrinking._texts(sentences))
    work = replace(work, choosing=replace(work.choosing, measure=measure))
    trial.Workshop(work, tmp_path, 1.0).try_out(one_shot(0.9))
    assert len(seen) == 2
    assert all("MaskedLinear" not in kinds for kinds in seen)


def test_parts_of_the_data_do_not_meet(model, sentences, tokenizer):
    work = make_workload(model, tokenizer, shrinking._texts(sentences))
    assert len(work.training.texts) == 56
    assert work.lost(0.9, 0.8) == pytest.approx(0.1)


def test_bad_requests(model, sentences, tokenizer, tmp_path):
    with pytest.raises(InputError, match="max_loss must be positive"):
        search(model, sentences, tokenizer, tmp_path / "out", max_loss=0)
    few = tmp_path / "few.txt"
    few.write_text("red cat\n" * 5)
    with pytest.raises(InputError, match="5 samples are too few"):
        search(model, few, tokenizer, tmp_path / "out")
    assert Candidate("dense", None).recipe is None
