# SPDX-License-Identifier: Apache-2.0
"""Optimizer state where masks move: survivors untouched, newcomers start as fresh weights."""

import copy

import pytest
import torch
from schedule_runs import attach, make_model, make_optimizer, masked_layers, run, schedule
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn import MaskedLinear
from gossamer.patterns import Unstructured
from gossamer.pruning.schedules import OptimizerEntries, Run
from gossamer.pruning.schedules.layers import ControlledLayer

RATE = 1e-2


def masked_model(shape=(6, 10), seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(shape[1], shape[0], bias=False))
    mask = torch.rand(shape) < 0.5
    model[0] = MaskedLinear.from_dense(model[0], mask, Unstructured())
    return model


def make_run(model, optimizer, grows=True):
    entries = OptimizerEntries(model, optimizer, grows)
    made = Run(model, [ControlledLayer(model, "0")], Unstructured(), entries, 1000)
    optimizer.register_step_pre_hook(lambda *_: entries.before())
    optimizer.register_step_post_hook(lambda *_: entries.after())
    return made


def steps(model, optimizer, number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        x = torch.randn(4, model[0].in_features, generator=generator)
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "rmsprop"])
def test_survivors_are_untouched_and_all_others_are_zero(kind):
    model = masked_model()
    optimizer = {
        "sgd": lambda p: torch.optim.SGD(p, RATE, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, RATE, amsgrad=True),
        "adamw": lambda p: torch.optim.AdamW(p, RATE),
        "rmsprop": lambda p: torch.optim.RMSprop(p, RATE, momentum=0.9, centered=True),
    }[kind](model.parameters())
    made = make_run(model, optimizer)
    steps(model, optimizer, 30)
    old, weight = model[0].mask(), model[0].weight
    before = copy.deepcopy(optimizer.state[weight])
    values = weight.detach().clone()
    new = old.roll(1, 1)
    made.change([new])
    survivors = old & new
    assert torch.equal(weight[survivors], values[survivors])
    assert not weight.detach()[~survivors].any()
    for key, slot in optimizer.state[weight].items():
        if torch.is_tensor(slot) and slot.shape == weight.shape:
            assert torch.equal(slot[survivors], before[key][survivors]), key
            assert not slot[~survivors].any(), key
        else:
            assert slot == before[key]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_grown_weights_train_exactly_as_new_parameters(kind, amsgrad, decay):
    """A weight grown at step 200 takes the steps of a Parameter born there."""
    torch.manual_seed(0)
    settings = {"lr": RATE, "amsgrad": amsgrad, "weight_decay": decay}
    model = masked_model()
    optimizer = kind(model.parameters(), **settings)
    made = make_run(model, optimizer)
    steps(model, optimizer, 200)
    old = model[0].mask()
    new = torch.ones_like(old)
    made.change([new])
    grown = new & ~old
    fresh = nn.Parameter(model[0].weight.detach().clone())
    oracle = kind([fresh], **settings)
    generator = torch.Generator().manual_seed(9)
    for number in range(12):
        gradient = torch.randn(fresh.shape, generator=generator)
        model[0].weight.grad, fresh.grad = gradient.clone(), gradient.clone()
        before = model[0].weight.detach().clone()
        optimizer.step()
        oracle.step()
        moved = (model[0].weight.detach() - before * (1 - RATE * decay)).abs()[grown]
        if number == 0 and not (kind is torch.optim.Adam and decay):
            assert float(moved.max()) <= RATE * (1 + 1e-5)
        torch.testing.assert_close(
            model[0].weight.detach()[grown], fresh.detach()[grown], rtol=1e-5, atol=1e-7
        )


def test_without_a_step_of_its_own_the_first_update_would_be_three_times_the_rate():
    """The fault this guards against, shown on stock Adam with zeroed slots."""
    model = masked_model()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    steps(model, optimizer, 3000)
    grown = ~model[0].mask()
    model[0].set_mask(torch.ones_like(grown))
    before = model[0].weight.detach().clone()
    model[0].weight.grad = torch.ones_like(before)
    optimizer.step()
    moved = (model[0].weight.detach() - before).abs()[grown]
    assert float(moved.max()) > 3 * RATE


def test_survivors_take_the_steps_of_stock_adam_bitwise():
    model = masked_model()
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    made = make_run(model, optimizer)
    steps(model, optimizer, 50)
    twin = copy.deepcopy(model)
    plain = torch.optim.AdamW(twin.parameters(), RATE)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    old = model[0].mask()
    made.change([torch.ones_like(old)])
    for _ in range(5):
        gradient = torch.randn(old.shape)
        model[0].weight.grad, twin[0].weight.grad = gradient, gradient.clone()
        optimizer.step()
        plain.step()
        assert torch.equal(model[0].weight[old], twin[0].weight[old])


def test_weights_grow_up_and_leave_the_record():
    model = masked_model()
    optimizer = torch.optim.Adam(model.parameters(), RATE, betas=(0.5, 0.5))
    made = make_run(model, optimizer)
    steps(model, optimizer, 5)
    made.change([torch.ones_like(model[0].mask())])
    assert made.entries.state_dict()["young"]["0"]["index"].numel() > 0
    steps(model, optimizer, 12)
    assert made.entries.state_dict()["young"] == {}


def test_entries_that_grow_and_drop_again_are_forgotten():
    model = masked_model()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    made = make_run(model, optimizer)
    steps(model, optimizer, 5)
    old = model[0].mask()
    made.change([torch.ones_like(old)])
    made.change([old])
    assert made.entries.state_dict()["young"] == {}


class Unknown(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["rows"] = torch.zeros(p.shape[0])


class Following(Unknown):
    cleared = 0

    def step(self, closure=None):
        pass

    def reset_entries(self, parameter, where):
        assert where.shape == parameter.shape
        self.cleared += int(where.sum())


def test_unknown_optimizers_are_refused_where_weights_come_back():
    model = make_model()
    for optimizer in (torch.optim.LBFGS(model.parameters()), Unknown(model.parameters())):
        with pytest.raises(InputError, match="reset_entries"):
            attach(model, optimizer, schedule("rigl"))
    with pytest.raises(InputError, match="expected a torch optimizer"):
        attach(model, None, schedule("rigl"))
    following = Following(model.parameters())
    ctl = attach(model, following, schedule("acdc"))
    for step in range(1, 13):
        following.step()
        ctl.step()
        assert step < 4 or following.cleared > 0


def test_unknown_state_is_refused_before_a_mask_moves():
    model = make_model()
    optimizer = Unknown(model.parameters())
    ctl = attach(model, optimizer, schedule("oneshot", at=2))
    optimizer.step()
    ctl.step()
    optimizer.step()
    with pytest.raises(InputError, match="'rows'"):
        ctl.step()
    assert all(layer.nnz == layer.mask().numel() for layer in masked_layers(model).values())


def test_a_copy_of_an_armed_model_is_independent():
    model = make_model()
    optimizer = make_optimizer("adamw", model)
    ctl = attach(model, optimizer, schedule("rigl", every=1))
    twin = copy.deepcopy(model)
    twin(torch.randn(4, 16)).sum().backward()
    assert model[0].gradient_sum.total is None
    ctl.close()
    assert model[0].gradient_sum is None


def test_rewinding_restores_weights_buffers_and_slots():
    first, seen = {}, []

    def after(step, model, optimizer, ctl, events):
        if step == 3:
            first["w"] = copy.deepcopy(model.state_dict())
            first["s"] = copy.deepcopy([optimizer.state[p] for p in model.parameters()])
        for event in events:
            if event.kind == "rewind":
                seen.append(event.details["lr_step"])
                for layer, name in ((model[0], "0"), (model[2], "2"), (model[4], "4")):
                    kept = layer.mask()
                    expected = first["w"][f"{name}.weight"]
                    assert torch.equal(layer.weight[kept], expected[kept])
                    assert not layer.weight.detach()[~kept].any()
                for p, slots in zip(model.parameters(), first["s"], strict=True):
                    assert optimizer.state[p]["step"] == slots["step"] == 3

    _, _, ctl = run(schedule("iterative_step"), after=after)
    assert seen == [3, 3, 3]
    masks = [event.sparsity for event in ctl.events if event.kind == "mask"]
    assert masks == pytest.approx([1 - 0.2 ** (r / 3) for r in (1, 2, 3)], abs=1e-3)


def test_one_after_another_may_be_attached_once_the_first_is_closed():
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    first = attach(model, optimizer, schedule("gradual"))
    with pytest.raises(InputError, match="attached already"):
        attach(model, optimizer, schedule("gradual"))
    with pytest.raises(InputError, match="attached already"):
        gossamer.attach(nn.Sequential(model), schedule("gradual"), optimizer, total_steps=40)
    first.close()
    first.close()
    with pytest.raises(InputError, match="closed"):
        first.step()
    second = attach(model, optimizer, schedule("gradual"))
    assert second.sparsity() == 0.0
