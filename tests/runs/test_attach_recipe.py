# SPDX-License-Identifier: Apache-2.0
"""`gossamer.attach` takes the schedule of a training recipe."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import RecipeError
from gossamer.recipes import load_recipe


def attached(recipe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    control = gossamer.attach(model, recipe, optimizer, total_steps=50)
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        control.step()
    return control


@pytest.mark.parametrize("form", ["name", "path", "recipe"])
def test_a_recipe_in_every_form(form, tmp_path):
    recipe = {
        "name": "train-gradual",
        "path": tmp_path / "r.yaml",
        "recipe": load_recipe("train-gradual", ["sparsity=0.7"]),
    }[form]
    (tmp_path / "r.yaml").write_text(
        "gossamer: 1\nstages:\n  - train: {task: images, model: {name: mlp}, steps: 9,"
        " schedule: {kind: gradual, sparsity: 0.8}}\n"
    )
    expected = {"name": 0.9, "path": 0.8, "recipe": 0.7}[form]
    assert attached(recipe).sparsity() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("name", ["train-dense", "magnitude-50"])
def test_recipes_without_a_schedule(name):
    with pytest.raises(RecipeError, match="train stage that has a schedule"):
        attached(name)
