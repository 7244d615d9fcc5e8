# SPDX-License-Identifier: Apache-2.0
"""From `optimizer:` of a recipe to an optimizer: settings arrive, biases are left out of ratios."""

import pytest
from torch import nn

from gossamer.errors import InputError
from gossamer.recipes import make_recipe
from gossamer.runs.training.models import build_optimizer
from gossamer.training.optim import LAMB, LARS


def build(**settings):
    stage = {"task": "images", "steps": 10, "optimizer": settings}
    recipe = make_recipe({"gossamer": 1, "stages": [{"train": stage}]}, "test")
    return build_optimizer(recipe.stages[0].train.optimizer, nn.Linear(3, 2))


def test_settings_of_lamb_and_lars_arrive_and_biases_have_no_ratio():
    given = {"corrected": False, "max_ratio": 1.0, "max_size": 10.0}
    lamb = build(name="lamb", normalised=True, **given)
    assert isinstance(lamb, LAMB)
    assert lamb.normalised
    weights, others = lamb.param_groups
    assert {name: weights[name] for name in given} == given
    assert (weights["adapt"], others["adapt"], others["weight_decay"]) == (True, False, 0.0)
    lars = build(name="lars", trust=0.02, clipped=True)
    assert isinstance(lars, LARS)
    assert [(g["trust"], g["clipped"], g["adapt"]) for g in lars.param_groups] == [
        (0.02, True, True),
        (0.02, True, False),
    ]


@pytest.mark.parametrize("setting", [{"corrected": True}, {"clipped": True}, {"max_ratio": 2.0}])
def test_other_optimizers_have_none_of_them(setting):
    with pytest.raises(InputError, match="adamw has none"):
        build(name="adamw", **setting)
