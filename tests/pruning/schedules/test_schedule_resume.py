# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped and resumed is the uninterrupted one, bit for bit."""

import copy
import json

import pytest
import torch
from safetensors.torch import load, save
from schedule_runs import (
    KINDS,
    STEPS,
    attach,
    flat_tensors,
    make_model,
    make_optimizer,
    run,
    schedule,
    train_step,
)

import gossamer
from gossamer.errors import InputError
from gossamer.nn.layers import CompactWeight

# Around mask updates of the different schedules, in the middle, and near both ends.
STOPS = (3, 5, 6, 7, 29, 31)


def through_files(state):
    """A state as it comes back from safetensors and JSON."""
    tensors = flat_tensors(state)
    raw = save({"/".join(path): tensor.contiguous() for path, tensor in tensors.items()})
    found = load(raw)

    def plain(value):
        if isinstance(value, torch.Tensor):
            return None
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list) else value

    rebuilt = json.loads(json.dumps(plain(state)))
    for path in tensors:
        place = rebuilt
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = found["/".join(path)]
    return rebuilt


def same(model, optimizer, other, other_optimizer):
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        mine, theirs = optimizer.state.get(p, {}), other_optimizer.state.get(q, {})
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert value is theirs[key] or torch.equal(value, theirs[key]), key


@pytest.mark.parametrize(
    ("name", "optimizer_name"),
    [*((name, "adamw") for name in KINDS), ("rigl", "sgd"), ("topkast", "sgd"), ("acdc", "sgd")],
)
def test_a_resumed_run_is_the_same_run(name, optimizer_name):
    saved = {}

    def keep(step, model, optimizer, ctl, events):
        if step in STOPS:
            parts = (model.state_dict(), optimizer.state_dict())
            saved[step] = (*copy.deepcopy(parts), through_files(ctl.state_dict()))

    model, optimizer, ctl = run(schedule(name), optimizer_name, after=keep)
    for stop, (weights, slots, state) in saved.items():
        resumed = make_model()
        torch.nn.init.normal_(resumed[0].weight)
        again = make_optimizer(optimizer_name, resumed)
        controller = attach(resumed, again, schedule(name))
        resumed.load_state_dict(weights)
        again.load_state_dict(copy.deepcopy(slots))
        controller.load_state_dict(state)
        assert controller.step_count == stop
        for step in range(stop + 1, STEPS + 1):
            train_step(resumed, again, controller, step)
        same(model, optimizer, resumed, again)
        assert [e.to_dict() for e in controller.events] == [e.to_dict() for e in ctl.events]


@pytest.mark.parametrize("name", ["rigl", "acdc", "topkast"])
@pytest.mark.parametrize("optimizer_name", ["adamw", "sgd"])
def test_compaction_after_settling_changes_no_step(name, optimizer_name):
    model, _, _ = run(schedule(name), optimizer_name)
    states = []

    def compacting(step, model, optimizer, ctl, events):
        if step == 35:
            assert ctl.is_settled
            gossamer.compact(model, optimizer)
            assert ctl.sparsity() == pytest.approx(0.8, abs=1e-3)
        if step == 37:
            parts = (model.state_dict(), optimizer.state_dict())
            states.append((*copy.deepcopy(parts), through_files(ctl.state_dict())))

    compacted, other, ctl = run(schedule(name), optimizer_name, after=compacting)
    for number in (0, 2, 4):
        assert isinstance(compacted[number], CompactWeight)
        expected = model[number].masked_weight()[model[number].mask()]
        assert torch.equal(compacted[number].values, expected)
    ctl.close()
    # And a checkpoint of the compact model goes on as well.
    weights, slots, state = states[0]
    resumed = make_model()
    again = make_optimizer(optimizer_name, resumed)
    controller = attach(resumed, again, schedule(name))
    controller.load_state_dict(state)
    gossamer.compact(resumed, again)
    resumed.load_state_dict(weights)
    again.load_state_dict(slots)
    for step in range(38, STEPS + 1):
        train_step(resumed, again, controller, step)
    same(compacted, other, resumed, again)


def test_a_state_of_another_schedule_or_model_is_refused():
    _, _, ctl = run(schedule("rigl"))
    state = ctl.state_dict()
    model = make_model()
    other = attach(model, make_optimizer("adamw", model), schedule("rigl", drop=0.5))
    with pytest.raises(InputError, match=r"drop: 0\.3 then, 0\.5 now"):
        other.load_state_dict(state)
    other.close()
    with pytest.raises(InputError, match="state_dict"):
        other.load_state_dict({})
    model = make_model()
    fewer = attach(model, make_optimizer("adamw", model), schedule("rigl", ignore=["0"]))
    with pytest.raises(InputError, match="another one"):
        fewer.load_state_dict(state)


def test_saving_in_the_middle_changes_nothing():
    def look(step, model, optimizer, ctl, events):
        model.state_dict()
        ctl.state_dict()

    for name in ("topkast", "gradual_regrow", "rigl"):
        model, optimizer, _ = run(schedule(name))
        same(model, optimizer, *run(schedule(name), after=look)[:2])
