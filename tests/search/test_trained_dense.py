# SPDX-License-Identifier: Apache-2.0
"""Where a search learns from labels, the dense model learns from them too, with the same care."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from search_tools import make_quick, random_lines, tiny_encoder, tiny_tokenizer

import gossamer
from gossamer.search import Mask, Point, SearchLimits, rungs
from gossamer.search.candidates import trained_dense
from gossamer.search.front import best, trained_beside
from gossamer.search.page import verdict

NINETY = (Mask("unstructured", 0.9),)


@pytest.fixture
def quick(monkeypatch):
    make_quick(monkeypatch)
    monkeypatch.setattr(rungs, "_HOPELESS", 10.0)


@pytest.fixture
def pairs(tmp_path):
    """Pairs whose score is whether they begin alike, which a random encoder cannot know."""
    firsts, seconds = random_lines(60), random_lines(60, seed=1)
    rows = [
        {"text_a": a, "text_b": b, "score": float(a[0] == b[0]) + 0.01 * i}
        for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def search(data, out, **options):
    seen = []
    result = gossamer.shrink(
        tiny_encoder(), data, out, tokenizer=tiny_tokenizer(), masks=NINETY, rates=(1e-3, 1e-2),
        on_trial=lambda trial: seen.append(trial.candidate), **options,
    )  # fmt: skip
    return result, seen


def test_dense_gets_the_steps_of_every_rung_that_prunes(pairs, tmp_path, quick):
    # Faster than anything, so that no rung is left out.
    result, seen = search(pairs, tmp_path / "out", max_ms=1e-6)
    steps = [name.split("-")[2] for name in seen if name.startswith("recovered-90")]
    trained = [name for name in seen if name.startswith("dense-trained")]
    # Every rate in the first rung, the best of them in the next.
    assert steps == ["3", "3", "4"]
    assert [name.split("-")[2] for name in trained] == ["3", "3", "4"]
    assert trained[2].split("-r")[1] in {name.split("-r")[1] for name in trained[:2]}
    points = {point.candidate: point for point in result.points}
    for name in trained:
        assert points[name].is_dense
        assert points[name].size == points["dense-int8"].size
    # All weights are there, on the int8 grid, and they are not those of the dense model.
    model = gossamer.load(result.work / trained[2])
    weight = model.encoder.layer[0].intermediate.dense.weight
    assert (weight != 0).float().mean() > 0.95
    assert not torch.equal(weight, tiny_encoder().encoder.layer[0].intermediate.dense.weight)


def point(candidate, lost, ms, size=100):
    return Point(candidate, "int8", 80 - 100 * lost, lost, ms, 10 / ms, size)


def asked_for(aim):
    """Candidates of all rungs for a mask that never meets the limits, and what was left out."""
    work = SimpleNamespace(aim=aim)
    state = rungs.Search(work, SearchLimits(0.01, max_ms=1e-6), dict, NINETY, rates=(1e-3,))
    state.points = [point("oneshot-90", 0.05, 2.0)]
    asked = []
    for candidate in state._recoveries(list(NINETY)):
        asked.append(candidate.name)
        if candidate.name.startswith("recovered"):
            state.points.append(point(candidate.name, 0.03, 2.0))
    return asked, state.skipped


def test_a_rival_that_found_no_time_is_said():
    asked, skipped = asked_for({"embeddings": 1.0, "hardness": 0.5})
    assert "dense-trained-100-r0.0002" in asked
    assert "dense-trained-100: no time was left" in skipped[0]


def test_without_labels_there_is_nothing_to_learn():
    asked, skipped = asked_for({"embeddings": 1.0})
    assert asked
    assert all(name.startswith("recovered") for name in asked)
    assert not skipped


def test_the_verdict_has_the_same_training_without_zeros(pairs, tmp_path, quick):
    result, _ = search(pairs, tmp_path / "out", budget_minutes=1e-9)
    trained = point("dense-trained-300-r0.0002", -0.02, 4.0)
    pruned = point("recovered-90-300-r0.0005", 0.003, 2.0)
    points = (*result.points, trained, pruned)
    found = replace(result, chosen=pruned, met=True, points=points, left_out=())
    said = verdict(found, SearchLimits(0.01))
    assert said.endswith(
        "Dense, trained on the same data (dense trained-300-r0.0002 int8): 2.50x dense fp32, -2.00%"
        " of the quality lost."
    )
    assert trained_beside([trained, pruned], trained) == ""
    assert trained_beside([pruned], pruned) == ""


def test_of_equally_fast_dense_models_the_trained_one_is_taken():
    plain, trained = point("dense-int8", 0.002, 4.0), point("dense-trained-100-r0.0002", -0.02, 4.0)
    assert best([plain, trained], SearchLimits(0.01)) is trained


def test_tables_are_rounded_once():
    aim = {"embeddings": 1.0, "hardness": 0.5}
    first = trained_dense(None, 100, 2e-4, aim).recipe
    more = trained_dense("dense-trained-100-r0.0002", 300, 2e-4, aim).recipe
    assert [type(stage.step).__name__ for stage in first.stages] == ["Round", "Recover", "Round"]
    assert [type(stage.step).__name__ for stage in more.stages] == ["Recover", "Round"]
    # It is its own teacher, who could teach it nothing.
    assert more.stages[0].recover.hardness == 1
