# SPDX-License-Identifier: Apache-2.0
"""SET, RigL and Top-KAST against their definitions."""

import copy

import pytest
import torch
from schedule_runs import (
    STEPS,
    attach,
    batch_loss,
    batch_of,
    make_model,
    make_optimizer,
    masked_layers,
    run,
    schedule,
    train_step,
)
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.pruning.schedules.base import cosine


def dense_gradients(model, batch):
    """Oracle: the gradient of the masked weights as leaves of their own."""
    twin = copy.deepcopy(model)
    leaves = {}
    for name, layer in masked_layers(model).items():
        leaf = nn.Linear(layer.in_features, layer.out_features)
        leaf.weight.data.copy_(layer.masked_weight())
        leaf.bias.data.copy_(layer.bias)
        twin[int(name)] = leaves[name] = leaf
    batch_loss(twin, batch).backward()
    return {name: leaf.weight.grad for name, leaf in leaves.items()}


def test_rigl_drops_the_smallest_and_grows_the_largest_gradients():
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    ctl = attach(model, optimizer, schedule("rigl"))
    for step in range(1, 30):
        before = {n: (m.mask(), m.weight.detach().clone()) for n, m in masked_layers(model).items()}
        gradients = dense_gradients(model, batch_of(step))
        optimizer.zero_grad()
        batch_loss(model, batch_of(step)).backward()
        for name, layer in masked_layers(model).items():
            assert not layer.weight.grad[~before[name][0]].any()
            collects = layer.gradient_sum is not None
            assert collects == (step % 6 == 0)
        optimizer.step()
        stepped = {n: m.masked_weight().detach().clone() for n, m in masked_layers(model).items()}
        ctl.step()
        if step % 6:
            continue
        for name, layer in masked_layers(model).items():
            old, new = before[name][0], layer.mask()
            kept = int(old.sum())
            num_dropped = int(kept * cosine(0.3, step / 30))
            sizes = torch.where(old, stepped[name].abs(), torch.inf).flatten()
            dropped = torch.zeros_like(sizes, dtype=torch.bool)
            dropped[sizes.sort(stable=True).indices[:num_dropped]] = True
            survivors = old & ~dropped.view(old.shape)
            growth = gradients[name].abs().masked_fill(survivors, -1.0).flatten()
            grown = torch.zeros_like(dropped)
            grown[growth.sort(descending=True, stable=True).indices[:num_dropped]] = True
            assert torch.equal(new, survivors | grown.view(old.shape)), (name, step)
            assert int(new.sum()) == kept
            both = new & old
            assert torch.equal(layer.weight[both], stepped[name][both])
            assert not layer.weight.detach()[new & ~old].any()


def test_micro_batches_add_up():
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    attach(model, optimizer, schedule("rigl", every=1))
    x, y = batch_of(1)
    for part in (slice(0, 16), slice(16, 32)):
        (batch_loss(model, (x[part], y[part])) / 2).backward()
    expected = dense_gradients(model, (x, y))
    for name, layer in masked_layers(model).items():
        torch.testing.assert_close(layer.gradient_sum.total, expected[name], rtol=1e-4, atol=1e-6)


def test_gradients_are_summed_over_the_steps_before_an_exchange():
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    ctl = attach(model, optimizer, schedule("rigl_summed"))
    sums, collecting = {}, []
    for step in range(1, 13):
        for name, gradient in dense_gradients(model, batch_of(step)).items():
            if step % 6 in (3, 4, 5, 0):
                sums[name] = gradient + sums.get(name, 0.0)
        optimizer.zero_grad()
        batch_loss(model, batch_of(step)).backward()
        collecting.append(model[0].gradient_sum is not None)
        if step % 6 == 0:
            for name, layer in masked_layers(model).items():
                torch.testing.assert_close(layer.gradient_sum.total, sums[name])
            sums = {}
        optimizer.step()
        ctl.step()
    assert collecting == [False, False, True, True, True, True] * 2


def test_gradients_that_are_not_finite_postpone_and_then_stop():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    ctl = attach(model, optimizer, schedule("rigl", every=5))
    kinds = []

    def step(bad):
        optimizer.zero_grad()
        loss = batch_loss(model, batch_of(0))
        (loss * (torch.nan if bad else 1.0)).backward()
        for p in model.parameters():
            p.grad = None
        kinds.append([event.kind for event in ctl.step()])

    for number in range(1, 8):
        step(bad=number in (5, 6))
    assert kinds == [[], [], [], [], ["postponed"], ["postponed"], ["mask"]]
    for _ in range(5):
        step(bad=True)
    assert kinds[-1] == ["postponed"]
    with pytest.raises(InputError, match="0: its gradient was NaN"):
        step(bad=True)


def test_an_update_without_a_backward_pass_is_an_error():
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    ctl = attach(model, optimizer, schedule("rigl", every=1))
    optimizer.step()
    with pytest.raises(InputError, match="no backward pass"):
        ctl.step()


def test_set_moves_as_much_as_the_cosine_says_and_settles():
    masks = []

    def after(step, model, optimizer, ctl, events):
        masks.append(torch.cat([m.mask().flatten() for m in masked_layers(model).values()]))
        moved = int((masks[-1] & ~masks[-2]).sum()) if step > 1 else 0
        assert (moved > 0) == (step % 6 == 0 and step < 30), step
        assert ctl.is_settled == (step >= 30)

    run(schedule("set"), after=after)


def test_topkast_trains_exactly_the_backward_set():
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    ctl = attach(model, optimizer, schedule("topkast", penalty=1e-3))
    moved_outside = 0
    for step in range(1, STEPS + 1):
        store = ctl.state_dict()["schedule"].get("store")
        reach = {n: m._buffers.get("_reach") for n, m in masked_layers(model).items()}
        train_step(model, optimizer, ctl, step)
        if store is None:
            continue
        after = ctl.state_dict()["schedule"].get("store")
        for name, layer in masked_layers(model).items():
            gradient = layer.weight.grad
            assert not gradient[~reach[name]].any()
            if after is None or step % 6 == 0:
                continue
            outside = ~layer.mask()
            untouched = outside & ~reach[name]
            assert torch.equal(after[name][untouched], store[name][untouched])
            assert not after[name][layer.mask()].any()
            moved_outside += int((after[name] != store[name])[outside & reach[name]].sum())
    assert moved_outside > 0
    assert ctl.is_settled
    assert ctl.penalty() is None
    assert all("_reach" not in layer._buffers for layer in masked_layers(model).values())


def test_topkast_sets_are_the_largest_weights():
    model = make_model()
    weights = {n: p.detach().clone() for n, p in model.named_parameters() if p.ndim == 2}
    given = schedule("topkast", exploration=0.3, budget="uniform")
    attach(model, make_optimizer("sgd", model), given)
    for name, layer in masked_layers(model).items():
        size = weights[f"{name}.weight"].abs()
        for mask, density in ((layer.mask(), 0.2), (layer._buffers["_reach"], 0.5)):
            assert int(mask.sum()) == round(density * mask.numel())
            assert size[mask].min() >= size[~mask].max()
        assert not (layer.mask() & ~layer._buffers["_reach"]).any()


def test_topkast_without_exploration_is_a_static_mask():
    given = schedule("topkast", exploration=0.0, penalty=0.0)
    model, _, ctl = run(given)
    static, _, _ = run({"kind": "oneshot", "at": 0, "sparsity": 0.8, "budget": "erk"})
    assert len(ctl.events) == 1
    for a, b in zip(model.parameters(), static.parameters(), strict=True):
        assert torch.equal(a, b)


def test_topkast_at_full_density_is_dense_training():
    model, _, _ = run(schedule("topkast", sparsity=0.0, penalty=0.0))
    dense = make_model()
    optimizer = make_optimizer("adamw", dense)
    for step in range(1, STEPS + 1):
        train_step(dense, optimizer, None, step)
    for a, b in zip(model.parameters(), dense.parameters(), strict=True):
        assert torch.equal(a, b)


def test_topkast_penalty_by_hand():
    model = make_model()
    weights = {n: p.detach().clone() for n, p in model.named_parameters() if p.ndim == 2}
    ctl = attach(model, make_optimizer("sgd", model), schedule("topkast", penalty=0.5))
    expected = 0.0
    for name, layer in masked_layers(model).items():
        weight, mask, reach = weights[f"{name}.weight"], layer.mask(), layer._buffers["_reach"]
        density = layer.nnz / mask.numel()
        expected += float(weight[mask].double().square().sum())
        expected += float(weight[reach & ~mask].double().square().sum()) / density
    penalty = ctl.penalty()
    assert float(penalty.detach()) == pytest.approx(0.5 * expected, rel=1e-5)
    penalty.backward()
    for name, layer in masked_layers(model).items():
        weight, mask, reach = weights[f"{name}.weight"], layer.mask(), layer._buffers["_reach"]
        density = layer.nnz / mask.numel()
        torch.testing.assert_close(layer.weight.grad[mask], weight[mask])
        border = reach & ~mask
        torch.testing.assert_close(layer.weight.grad[border], weight[border] / density)


def test_convolutions_and_tied_layers_follow():
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3, padding=1)
            self.a = nn.Linear(16, 16)
            self.b = nn.Linear(16, 16)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(self.conv(x).mean(1).flatten(1)))

    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ctl = gossamer.attach(
        model, {"kind": "rigl", "sparsity": 0.5, "every": 2}, optimizer, total_steps=20
    )
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 2, 4, 4)).square().mean().backward()
        optimizer.step()
        ctl.step()
    assert model.a.weight is model.b.weight
    assert torch.equal(model.a.mask(), model.b.mask())
    assert ctl.sparsity() == pytest.approx(0.5, abs=1e-2)
    assert sum(event.details.get("grown", 0) for event in ctl.events) > 0
