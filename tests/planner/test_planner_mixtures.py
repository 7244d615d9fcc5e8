# SPDX-License-Identifier: Apache-2.0
"""Plans of models with experts: published sizes, memory and traffic by hand, layouts that exist."""

import json
from dataclasses import replace

import pytest
import torch

from gossamer import plan
from gossamer.cli.main import main
from gossamer.errors import InputError
from gossamer.planner.mixture_shape import MIXTURE_SHAPES, MixtureModelSizes, mixture_shape
from gossamer.planner.model_sources import describe
from gossamer.zoo.switch import SwitchGPT

# Parameters that the papers and checkpoints state, in billions.
PUBLISHED = {"switch-base": 7.4, "switch-xxl": 395, "mixtral-8x7b": 46.7, "deepseek-v3": 671}
SMALL = MixtureModelSizes(2, 64, 4, 8, 2, 128, every=2, gated=False, vocabulary=256, tokens=32)


@pytest.mark.parametrize("name", MIXTURE_SHAPES)
def test_shapes_have_the_parameters_that_were_published(name):
    shape = mixture_shape(MIXTURE_SHAPES[name], name)
    assert shape.parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_a_switch_model_of_the_zoo_is_counted_by_the_same_formulas():
    with torch.device("meta"):
        model = SwitchGPT(256, width=64, num_heads=4, num_layers=2, context=32, num_experts=8)
    shape = describe(model).shape
    # Biases and positions are not in the formulas.
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert shape.parameters == pytest.approx(whole, rel=0.05)
    assert shape.experts == 8
    assert sum(unit.of_experts for unit in shape.units) == 2 * 8 * 64 * 256


def test_memory_traffic_and_layouts_follow_the_number_of_expert_ranks():
    shape = mixture_shape(SMALL, "small")
    found = plan(shape, "workstations", batch=64, sparsity=0.0, ranks=4, states=["dense fp32"])
    grids = {(c.layout.grid.data, c.layout.grid.expert): c for c in found.states[0].candidates}
    assert set(grids) == {(4, 1), (2, 2), (1, 4)}
    assert all(c.layout.grid.pipeline == c.layout.grid.shard == 1 for c in grids.values())
    experts = 8 * 2 * 64 * 128
    rest = shape.parameters - experts
    for (data, expert), one in grids.items():
        # A weight, its gradient and two moments, of float32.
        held = one.memory.weights + one.memory.gradients + one.memory.state
        assert held == pytest.approx(16 * (rest + experts / expert), rel=1e-6)
        tokens = 64 / 4 * 32
        assert one.traffic.tokens == pytest.approx(4 * tokens * 2 * 64 * 4 * (1 - 1 / expert))
        reduced = 2 * 4 * (rest * (1 - 1 / 4) + experts / expert * (1 - 1 / data))
        assert one.traffic.all_reduce == pytest.approx(reduced)
        assert (one.time.tokens > 0) == (expert > 1)
    assert grids[1, 4].time.all_reduce < grids[4, 1].time.all_reduce


def test_ranks_that_do_not_divide_the_experts_share_none():
    shape = mixture_shape(replace(SMALL, experts=6), "six")
    found = plan(shape, "workstations", batch=64, ranks=4, states=["dense fp32"])
    assert {c.layout.grid.expert for c in found.states[0].candidates} == {1, 2}
    with pytest.raises(InputError, match="top_k: must be at most 8"):
        replace(SMALL, top_k=9)


@pytest.mark.parametrize("name", ["switch-base", "mixtral-8x7b"])
def test_the_command_plans_them(name, capsys):
    words = ["plan", name, "--cluster", "dgx-like", "--batch", "4096"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    best = document["states"][-1]["candidates"][0]
    assert best["expert"] > 1
    assert best["traffic"]["tokens"] > 0
    assert main(words) == 0
    assert "expert" in capsys.readouterr().out
