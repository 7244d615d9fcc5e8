# SPDX-License-Identifier: Apache-2.0
"""The `round` stage: what is rounded, what is left alone, and what is refused."""

import pytest
import torch
from torch import nn

from gossamer.errors import GossamerError, InputError, RecipeError
from gossamer.formats.grid import find_grid
from gossamer.nn.rounding import round_layer
from gossamer.recipes import make_recipe
from gossamer.runs import execute


def _recipe(*stages):
    return make_recipe({"gossamer": 1, "stages": list(stages)}, "test")


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


def test_layers_and_tables_after_pruning():
    model = _model()
    prune = {"prune": {"method": "magnitude", "sparsity": 0.5, "targets": "1"}}
    report = execute(_recipe(prune, {"round": {"layers": "int8", "embeddings": "int4"}}), model)
    assert find_grid(model[0].weight.detach()).bits == 4
    assert find_grid(model[1].masked_weight().detach()).bits == 8
    assert find_grid(model[3].weight.detach()).bits == 8
    assert any("2 layers to int8, 1 layers to int4" in note for note in report.notes)


def test_ignored_layers_and_null_are_left_alone():
    model = _model()
    before = [model[i].weight.detach().clone() for i in (0, 1, 3)]
    execute(_recipe({"round": {"ignore": ["3"]}}), model)
    assert torch.equal(model[0].weight, before[0])
    assert not torch.equal(model[1].weight, before[1])
    assert torch.equal(model[3].weight, before[2])


def test_tied_weights_are_rounded_once():
    model = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64, bias=False))
    model[1].weight = model[0].weight
    execute(_recipe({"round": {"layers": "int8", "embeddings": "int4"}}), model)
    assert find_grid(model[0].weight.detach()).bits == 4


def test_nothing_to_round_is_a_fault():
    with pytest.raises(RecipeError, match="nothing to round"):
        _recipe({"round": {"layers": None}})
    with pytest.raises(RecipeError, match="int8"):
        _recipe({"round": {"layers": "int3"}})


def test_what_cannot_be_rounded():
    with pytest.raises(InputError, match="float32"):
        round_layer(nn.Linear(4, 4, dtype=torch.bfloat16), "int8")
    with pytest.raises(InputError, match="LayerNorm"):
        round_layer(nn.LayerNorm(4), "int8")
    with pytest.raises(GossamerError, match="int3"):
        round_layer(nn.Linear(4, 4), "int3")
