# SPDX-License-Identifier: Apache-2.0
"""Hosts whose files differ: the run ends before its first step and says in what."""

import pytest
from grid_launch import launch

RECIPE = """
gossamer: 1
stages:
  - train: {task: images, steps: 4, mesh: {data: 2}}
"""

OWN = """
import os
import torch
import gossamer
from gossamer.zoo import MLP

def masks():
    torch.manual_seed(0)
    model = MLP((144, 16, 6))
    if os.environ["RANK"] == "1":
        model.layers[0].weight.data.mul_(torch.rand(16, 144))
    gossamer.sparsify(model, sparsity=0.5)
    return model

def weights():
    model = MLP((144, 16, 6))
    model.head.bias.data.fill_(float(os.environ["RANK"]))
    return model
"""


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("masks", "the mask of layer layers.0 differs at the start"),
        ("weights", "the initial value of head.bias differs at the start"),
    ],
)
def test_the_first_difference_is_named_before_the_first_step(tmp_path, function, what):
    (tmp_path / "own_model.py").write_text(OWN)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    run = launch(tmp_path, 2, "--model", f"own_model:{function}", PYTHONPATH=str(tmp_path))
    assert run.ended() == [5, 5], run.errors()
    assert run.errors().count(f"gossamer: {what} between ranks 0 and 1") == 1
    assert not run.metrics()
