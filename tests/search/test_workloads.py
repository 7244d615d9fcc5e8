# SPDX-License-Identifier: Apache-2.0
"""Data of every kind as a workload: parts that do not meet, qualities, losses, bad input."""

import numpy as np
import pytest
import torch
from search_tools import make_quick, random_lines, tiny_encoder, tiny_tokenizer
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.io.artifact.beside import CARD_FILE
from gossamer.runs.calibration import Quality
from gossamer.search import Mask
from gossamer.search.workloads import load_workload
from gossamer.search.workloads.workload import split_data, typical_ids


def _labelled(tmp_path, name="a.csv", count=80):
    lines = [f"{text},{int('red' in text)}" for text in random_lines(count)]
    path = tmp_path / name
    path.write_text("\n".join(["text,label", *lines]))
    return path


def _images(tmp_path, name="a.npz", **more):
    generator = np.random.default_rng(0)
    arrays = {
        "x": generator.integers(0, 256, (60, 1, 8, 8)).astype(np.uint8),
        "y": generator.integers(0, 3, 60),
        **more,
    }
    np.savez(tmp_path / name, **arrays)
    return tmp_path / name


def _classifier():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 3)
    ).eval()


@pytest.mark.parametrize(("choose", "report"), [(True, True), (False, True), (False, False)])
def test_parts_never_meet(choose, report):
    given = (None if choose else [], None if report else [])
    parts = split_data(100, list, given, "here")
    together = [number for part in parts for number in part]
    assert sorted(together) == list(range(100))
    assert [len(part) for part in parts[1:]] == [15 * choose, 15 * report]
    assert parts == split_data(100, list, given, "here")


def test_loss_is_told_in_the_unit_of_the_quality():
    def quality(lower, whole):
        return Quality("q", lower, lambda m: 0.0, "", whole)

    assert quality(False, 100.0).lost(80.0, 79.0) == pytest.approx(0.01)
    assert quality(False, 1.0).lost(0.8, 0.79) == pytest.approx(0.01)
    assert quality(True, None).lost(20.0, 21.0) == pytest.approx(0.05)
    assert quality(False, None).lost(20.0, 19.0) == pytest.approx(0.05)


def test_texts_with_labels(tmp_path):
    model = tiny_encoder(classes=2)
    work = load_workload(model, tiny_tokenizer(), _labelled(tmp_path))
    assert work.choosing.name == "accuracy (%)"
    assert 0 <= work.choosing.measure(model) <= 100
    batches = work.batches()
    assert all(len(batch.labels) == len(batch.arguments["input_ids"]) for batch in batches)
    assert float(work.loss(model, batches[0]).detach()) > 0
    made = work.samples().make([3, 5])
    assert made.labels.shape == (2,)
    assert work.terms["hardness"] > 0


def test_images_and_their_test_part(tmp_path):
    model = _classifier()
    work = load_workload(model, None, _images(tmp_path))
    assert work.choosing.data.startswith("9 images")
    more = {"x_test": np.zeros((7, 8, 8), np.uint8), "y_test": np.zeros(7, int)}
    held = load_workload(model, None, _images(tmp_path, "b.npz", **more))
    assert held.reporting.data.startswith("7 images")
    assert held.samples().make([0, 1]).arguments.shape == (2, 1, 8, 8)
    assert float(held.batches()[0].arguments.max()) <= 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3, int)}, "one for each of 60"),
        ({"y": np.full(60, -1)}, "whole numbers from 0"),
        ({"x": np.full((60, 2), 1.0)}, "expected numbers"),
        ({"x": np.full((60, 4, 4), np.nan)}, "NaN"),
    ],
)
def test_bad_images(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message):
        load_workload(_classifier(), None, _images(tmp_path, **arrays))


def test_files_that_are_no_images(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"no zip")
    with pytest.raises(InputError, match="cannot be read"):
        load_workload(_classifier(), None, path)
    np.savez(path, z=np.zeros(3))
    with pytest.raises(InputError, match="found z"):
        load_workload(_classifier(), None, path)
    np.savez(path, x=np.array([{}], dtype=object), y=np.zeros(1, int))
    with pytest.raises(InputError, match="cannot be read"):
        load_workload(_classifier(), None, path)


def test_parts_of_two_kinds_are_refused(tmp_path):
    texts = tmp_path / "a.txt"
    texts.write_text("\n".join(random_lines(30)))
    with pytest.raises(InputError, match="must be of one kind"):
        load_workload(tiny_encoder(), tiny_tokenizer(), texts, choose=_images(tmp_path))


def test_own_batches_need_an_own_metric():
    batches = [torch.randn(4, 1, 8, 8) for _ in range(10)]
    with pytest.raises(InputError, match="need a metric of your own"):
        load_workload(_classifier(), None, batches)

    def score(model, part):
        return float(len(part))

    score.whole = 10.0
    work = load_workload(_classifier(), None, batches, metric=score)
    assert (work.choosing.measure(None), work.reporting.measure(None)) == (2, 2)
    assert work.choosing.lost(2.0, 1.0) == pytest.approx(0.1)
    assert work.example is not None


def test_timed_tokens_are_those_of_the_data():
    rows = [torch.tensor([1, 2]), torch.tensor([3])]
    assert typical_ids(rows, 10, 3).tolist() == [[1, 2, 3]]
    longer = typical_ids(rows, 10, 6)
    assert longer.shape == (1, 6)
    assert longer[0, :3].tolist() == [1, 2, 3]


def test_a_classifier_of_images_is_searched(tmp_path, monkeypatch):
    make_quick(monkeypatch, steps=((2, 1),))
    result = gossamer.shrink(
        _classifier(), _images(tmp_path), tmp_path / "o", max_ms=1e-6,
        masks=(Mask("unstructured", 0.8),),
    )  # fmt: skip
    names = [point.candidate for point in result.points]
    assert names[:4] == ["dense", "dense-int8", "dense-bf16", "oneshot-80"]
    assert any(name.startswith("recovered-80-2") for name in names)


class OwnNet(nn.Module):
    """What no artifact can describe: the user's class."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.body = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 64, 3, padding=1)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        y = self.body(self.stem(x).relu()).relu() + 1
        return self.head(y.mean((2, 3)))


def test_a_network_of_the_users_own_is_searched(tmp_path, monkeypatch):
    make_quick(monkeypatch, steps=((2, 1),))
    model = OwnNet().eval()
    result = gossamer.shrink(
        model, _images(tmp_path), tmp_path / "o", max_ms=1e-6,
        masks=(Mask("unstructured", 0.8),),
    )  # fmt: skip
    assert any(point.candidate.startswith("recovered-80-2") for point in result.points)
    card = (tmp_path / "o" / CARD_FILE).read_text()
    assert "gossamer.load(path, your_model)" in card
    assert "example=images" in card
    pruned = gossamer.load(tmp_path / "o.work" / "oneshot-80", OwnNet())
    zeros = {name: float((p == 0).float().mean()) for name, p in pruned.state_dict().items()}
    assert zeros["stem.weight"] == 0  # 8 weights of 4616
    assert torch.equal(model.body.weight, OwnNet().body.weight)


def test_small_layers_stay_dense(tmp_path):
    work = load_workload(OwnNet().eval(), None, _images(tmp_path))
    # 8 weights of 4808; the head's 192 are 4 %, and find_targets leaves it by name.
    assert work.kept_dense == ["stem"]
    alone = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    assert load_workload(alone, None, _images(tmp_path)).kept_dense == []


def test_a_classifier_of_texts_is_searched(tmp_path, monkeypatch):
    make_quick(monkeypatch, steps=((2, 1),))
    result = gossamer.shrink(
        tiny_encoder(classes=2), _labelled(tmp_path), tmp_path / "o", max_ms=1e-6,
        tokenizer=tiny_tokenizer(), masks=(Mask("unstructured", 0.8),),
    )  # fmt: skip
    assert any(point.candidate.startswith("recovered-80-2") for point in result.points)
    gossamer.load(result.path)
