# SPDX-License-Identifier: Apache-2.0
"""What is measured in the middle of a run: the best state, and the minutes."""

import math

import pytest
import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.training.loop import LearningRate, LoopSettings
from gossamer.training.loop.evaluation import BestState, Stopwatch


def weight(model, value):
    with torch.no_grad():
        model.weight.fill_(value)


def test_the_lowest_number_is_the_best_and_the_first_of_equals():
    model = nn.Linear(1, 1, bias=False)
    best = BestState(model, "loss")
    best.restore()  # nothing was looked at
    for step, loss in enumerate([math.nan, 3.0, 1.0, math.nan, 1.0, 2.0]):
        weight(model, step)
        best.look(step, {"loss": loss, "score": 0.0})
    assert math.isnan(best.first)
    assert (best.value, best.step) == (1.0, 2)
    best.restore()
    assert float(model.weight.detach()) == 2.0


def test_statistics_of_a_batch_norm_belong_to_the_best_state():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    best = BestState(model, "loss")
    model(torch.randn(8, 2))
    best.look(1, {"loss": 1.0})
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(torch.randn(8, 2) + 5)
    best.look(2, {"loss": 2.0})
    assert not torch.equal(model[1].running_mean, expected["1.running_mean"])
    best.restore()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_the_best_state_is_saved_and_checked():
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    best = BestState(model, "loss")
    best.look(4, {"loss": 0.5})
    state = best.state_dict()
    assert list(state["kept"]) == ["weight"]
    again = BestState(model, "loss")
    again.load_state_dict(state)
    assert (again.first, again.value, again.step) == (0.5, 0.5, 4)
    with pytest.raises(ArtifactError, match="not one of this model"):
        BestState(nn.Linear(3, 1, bias=False), "loss").load_state_dict(state)
    with pytest.raises(InputError, match="has no number 'loss'"):
        best.look(5, {"accuracy": 1.0})


def test_settings_of_evaluation_that_make_no_sense():
    rate = LearningRate("constant", 5)
    with pytest.raises(InputError, match="keep_best: a state from before compaction"):
        LoopSettings(5, rate, keep_best="loss")
    with pytest.raises(InputError, match="minutes: must be more than 0"):
        LoopSettings(5, rate, minutes=-1.0)


def test_a_stopwatch_goes_on_from_earlier_parts_and_leaves_pauses_out():
    now = [100.0]
    watch = Stopwatch(lambda: now[0])
    watch.seconds = [7.0, 3.0]
    assert watch.read() == [7.0, 3.0]  # not started
    watch.start()
    now[0] += 5.0
    with watch.paused():
        now[0] += 1000.0
    now[0] += 1.0
    wall, cpu = watch.read()
    assert wall == 13.0
    assert cpu >= 3.0
