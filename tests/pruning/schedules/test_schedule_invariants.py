# SPDX-License-Identifier: Apache-2.0
"""What must hold after every step of every schedule."""

import pytest
import torch
from schedule_runs import KINDS, STEPS, make_model, masked_layers, run, schedule
from torch import nn

from gossamer.patterns import parse_pattern
from gossamer.pruning.budgets import BUDGETS, BudgetLayer

DENSE_STORE = ("gradual_regrow", "topkast")


def check_layers(model, optimizer, stores):
    for name, layer in masked_layers(model).items():
        weight = layer.weight_parameter()
        pruned = ~layer.mask().view(weight.shape)
        assert not weight.detach()[pruned].any(), name
        layer.pattern.validate(layer.mask())
        if stores:
            continue
        for key, slot in optimizer.state.get(weight, {}).items():
            if slot is not None and slot.shape == weight.shape:
                assert not slot[pruned].any(), (name, key)


@pytest.mark.parametrize("optimizer_name", ["sgd", "adam"])
@pytest.mark.parametrize("name", KINDS)
def test_pruned_weights_and_their_slots_are_zero_after_every_step(name, optimizer_name):
    def after(step, model, optimizer, ctl, events):
        check_layers(model, optimizer, name in DENSE_STORE and not ctl.is_settled)
        assert 0.0 <= ctl.sparsity() < 1.0
        for event in events:
            assert event.step == step

    model, _, ctl = run(schedule(name), optimizer_name, after=after)
    assert ctl.is_settled
    assert ctl.sparsity() == pytest.approx(0.8, abs=2e-3)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("pattern", ["2:4", "1:4", "block:4x4"])
@pytest.mark.parametrize("name", KINDS)
def test_patterns_hold_after_every_step(name, pattern):
    given = schedule(name, pattern=pattern)
    if pattern != "block:4x4":
        given.pop("sparsity")

    def after(step, model, optimizer, ctl, events):
        check_layers(model, optimizer, stores=True)

    model, _, ctl = run(given, after=after)
    assert ctl.is_settled
    rule = parse_pattern(pattern)
    for layer in masked_layers(model).values():
        assert layer.pattern == rule
        rule.validate(layer.mask())
        if rule.fixed_density is not None:
            assert layer.nnz == round(rule.fixed_density * layer.mask().numel())


@pytest.mark.parametrize("budget", ["uniform", "erk", "global"])
@pytest.mark.parametrize("name", KINDS)
def test_budgets_share_the_exact_count(name, budget):
    if budget == "global" and name in ("set", "rigl", "rigl_summed"):
        pytest.skip("refused: there is nothing to rank before training")
    model, _, ctl = run(schedule(name, budget=budget))
    layers = masked_layers(model)
    shapes = [BudgetLayer(n, tuple(m.weight_parameter().shape)) for n, m in layers.items()]
    counts = [layer.nnz for layer in layers.values()]
    if budget != "global":
        assert counts == BUDGETS.get(budget)(shapes, 0.2)
    if budget != "uniform":
        assert sum(counts) == round(0.2 * sum(shape.numel for shape in shapes))
    assert ctl.sparsity() == pytest.approx(1 - sum(counts) / sum(s.numel for s in shapes))


@pytest.mark.parametrize("name", KINDS)
def test_the_same_run_gives_the_same_masks_and_weights(name):
    first, _, ctl1 = run(schedule(name))
    second, _, ctl2 = run(schedule(name))
    assert [event.to_dict() for event in ctl1.events] == [e.to_dict() for e in ctl2.events]
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["random", "set"])
def test_seeds_change_what_is_drawn(name):
    digests = {
        tuple(m.mask_digest() for m in masked_layers(run(schedule(name, seed=seed))[0]).values())
        for seed in range(3)
    }
    assert len(digests) == 3


def test_gradual_follows_the_cubic_and_never_brings_a_weight_back():
    seen, masks = [], []

    def after(step, model, optimizer, ctl, events):
        now = torch.cat([m.mask().flatten() for m in masked_layers(model).values()])
        if masks:
            assert not (now & ~masks[-1]).any()
        masks.append(now)
        seen.append(ctl.sparsity())

    run(schedule("gradual", sparsity=0.9, budget="erk"), after=after)
    for step in range(1, STEPS + 1):
        ramp = min(max(step - 4, 0) // 4 * 4 / 24, 1.0)
        assert seen[step - 1] == pytest.approx(0.9 * (1 - (1 - ramp) ** 3), abs=3e-3)


def test_gradual_with_regrowth_brings_weights_back():
    masks, back = [], []

    def after(step, model, optimizer, ctl, events):
        now = torch.cat([m.mask().flatten() for m in masked_layers(model).values()])
        if masks:
            back.append(int((now & ~masks[-1]).sum()))
        masks.append(now)

    run(schedule("gradual_regrow"), after=after)
    assert sum(back) > 0


def test_acdc_is_a_sawtooth_and_dense_phases_train_everything():
    from gossamer.pruning.schedules.magnitude import phases

    changes, expected, digests = phases(4, 4, 28, 34), 0.0, []

    def after(step, model, optimizer, ctl, events):
        nonlocal expected
        before = expected
        if step in changes:
            expected = 0.8 if changes[step] == "sparse" else 0.0
        assert ctl.sparsity() == pytest.approx(expected, abs=2e-3)
        gradients = torch.cat([m.weight.grad.flatten() for m in masked_layers(model).values()])
        if before == 0.0:
            assert (gradients != 0).float().mean() > 0.5  # dead units of the ReLU aside
        else:
            assert (gradients != 0).float().mean() <= 0.2 + 1e-3
            if expected:
                digests.append((step, [m.mask_digest() for m in masked_layers(model).values()]))

    run(schedule("acdc"), after=after)
    inside = [d for step, d in digests if step >= 35]
    assert len(inside) == 6
    assert all(digest == inside[0] for digest in inside)


def test_acdc_can_clear_the_optimizer_at_each_decompression():
    def after(step, model, optimizer, ctl, events):
        if any(event.kind == "dense" for event in events):
            for layer in masked_layers(model).values():
                assert layer.weight_parameter() not in optimizer.state

    run(schedule("acdc", reset_momentum=True), after=after)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1)])
@pytest.mark.parametrize("name", ["gradual", "rigl", "set", "topkast", "acdc", "random"])
def test_tiny_layers(name, shape):
    import gossamer

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(shape[1], shape[0], bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ctl = gossamer.attach(model, schedule(name), optimizer, total_steps=STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, shape[1])).sum().backward()
        optimizer.step()
        ctl.step()
    assert model[0].nnz == round(0.2 * shape[0] * shape[1])


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_pruned_at_sparsity_zero(name):
    model, _, ctl = run(schedule(name, sparsity=0.0))
    assert ctl.sparsity() == 0.0
    assert ctl.is_settled
    if name in ("oneshot", "random", "gradual", "early_bird", "set", "rigl"):
        dense = make_model()
        optimizer = torch.optim.AdamW(dense.parameters(), 1e-2)
        from schedule_runs import train_step

        for step in range(1, STEPS + 1):
            train_step(dense, optimizer, None, step)
        for a, b in zip(model.parameters(), dense.parameters(), strict=True):
            assert torch.equal(a, b)
