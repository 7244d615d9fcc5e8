# SPDX-License-Identifier: Apache-2.0
"""Every built-in training recipe runs on a tiny model."""

import pytest
from loop_tools import train_recipe

from gossamer import sparsify
from gossamer.errors import RecipeError
from gossamer.nn.layers import CompactWeight
from gossamer.recipes import builtin_names, load_recipe
from gossamer.recipes.stages.schedules import SCHEDULES

NAMES = [name for name in builtin_names() if name.startswith("train-")]
TINY = {
    "images": ["batch=16", "model.width=12"],
    "text": ["batch=4", "model.width=16", "model.layers=1", "model.heads=2", "model.context=16"],
    "clicks": ["batch=16", "model.width=4"],
    "graph": ["batch=16", "model.width=8"],
    "labelled": ["batch=8", "model.width=16", "model.layers=1", "model.heads=2"],
}


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    task = load_recipe(name).stages[0].train.task
    overrides = ["steps=20", *(f"stages.0.train.{change}" for change in TINY[task])]
    overrides += ["stages.0.train.checkpoint.every=10"]
    stage = load_recipe(name).stages[0].train
    if stage.schedule is not None and "every" in type(stage.schedule).model_fields:
        overrides.append("stages.0.train.schedule.every=2")
    trained = train_recipe(tmp_path / "out", load_recipe(name, overrides), f"zoo:{task}")
    loop = trained.loop
    assert loop.step == 20
    assert loop.quality
    layers = [m for m in loop.model.modules() if isinstance(m, CompactWeight)]
    if stage.schedule is None:
        assert not layers
        return
    if stage.compaction == "slim":
        assert not layers
        assert loop.model.conv0.out_channels == loop.model.norm0.num_features == 6
        assert loop.model.conv1.weight.shape[:2] == (12, 6)
        return
    assert layers
    kept = sum(layer.nnz for layer in layers)
    total = sum(layer.matrix_shape[0] * layer.matrix_shape[1] for layer in layers)
    zeros = stage.schedule.sparsity
    assert 1 - kept / total == pytest.approx(zeros, abs=0.02)
    assert loop.control.sparsity() == pytest.approx(zeros, abs=0.02)


def test_there_is_one_for_every_schedule():
    stages = [load_recipe(name).stages[0].train for name in NAMES]
    kinds = {stage.schedule.kind for stage in stages if stage.schedule is not None}
    assert kinds == set(SCHEDULES)


def test_sparsify_says_how_to_train(tmp_path):
    from torch import nn

    with pytest.raises(RecipeError, match="gossamer train"):
        sparsify(nn.Sequential(nn.Linear(4, 4)), "train-gradual")
