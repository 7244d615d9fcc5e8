# SPDX-License-Identifier: Apache-2.0
"""The short loop: rates, limits, the best state, bits, faults."""

import copy
import math

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn import Linear, MaskedLinear
from gossamer.train.recovery import Distillation, Schedule, Teacher, Terms, TrainingBatch, recover
from gossamer.train.recovery.compact_form import compact_form


def dense_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 6)).eval()


def pruned_model():
    model = dense_model()
    gossamer.sparsify(model, sparsity=0.8, ignore=None)
    return model


def batches(count=6):
    generator = torch.Generator().manual_seed(3)
    return [TrainingBatch(torch.randn(32, 24, generator=generator)) for _ in range(count)]


def shuffled(data):
    def epoch(generator):
        return [data[i] for i in torch.randperm(len(data), generator=generator).tolist()]

    return epoch


def objective():
    return Distillation(Teacher(dense_model()), Terms(logits=1.0))


def test_the_rate_rises_then_falls_to_zero():
    schedule = Schedule(steps=100, rate=2.0, warmup=0.1)
    rates = [schedule.rate_at(step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[5] == pytest.approx(1.0)
    assert max(rates) == rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.0)
    cosine = Schedule(steps=100, rate=2.0, warmup=0.0, decay="cosine")
    assert cosine.rate_at(0.0) == pytest.approx(2.0)
    assert cosine.rate_at(0.5) == pytest.approx(1.0)
    assert cosine.rate_at(0.25) == pytest.approx(1 + math.cos(math.pi / 4))


def test_progress_is_of_the_limit_that_is_nearer():
    schedule = Schedule(steps=10, minutes=2.0)
    assert schedule.progress(5, 30.0) == 0.5
    assert schedule.progress(1, 90.0) == 0.75
    assert schedule.progress(99, 0.0) == 1.0
    assert Schedule(steps=10).progress(0, 1e9) == 0.0


def test_recovery_wins_back_quality_and_holds_masks():
    model = pruned_model()
    digests = [layer.mask_digest() for layer in (model[0], model[2])]
    gossamer.compact(model)
    data = batches()
    held = batches(7)[-1]
    goal = objective()

    def validate(net):
        with torch.no_grad():
            return float(goal(net, held)[0])

    schedule = Schedule(steps=80, rate=0.01, checks=4)
    result = recover(model, goal, shuffled(data), schedule, validate=validate)
    assert [check.step for check in result.checks] == [0, 20, 40, 60, 80]
    assert result.steps == 80
    assert result.best.validation < 0.3 * result.checks[0].validation
    assert validate(model) == pytest.approx(result.best.validation)
    assert [layer.mask_digest() for layer in (model[0], model[2])] == digests
    assert all(parameter.grad is None for parameter in model.parameters())
    assert result.checks[0].loss is None
    assert result.checks[1].parts["logits"] == pytest.approx(result.checks[1].loss, rel=1e-5)


def test_equal_seeds_give_equal_bits_and_other_seeds_others():
    def trained(seed):
        model = pruned_model()
        gossamer.compact(model)
        schedule = Schedule(steps=12, rate=0.01, seed=seed)
        recover(model, objective(), shuffled(batches()), schedule)
        return model.state_dict()

    first, again, other = trained(0), trained(0), trained(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_compact_and_masked_layers_take_the_same_steps():
    masked, compacted = pruned_model(), pruned_model()
    gossamer.compact(compacted)
    for model in (masked, compacted):
        recover(model, objective(), shuffled(batches()), Schedule(steps=5, rate=0.01))
    for one, two in zip(masked, compacted, strict=True):
        if isinstance(one, MaskedLinear):
            torch.testing.assert_close(
                one.masked_weight(), two.dense_weight(), rtol=1e-5, atol=1e-6
            )


def test_the_best_state_is_kept_though_later_ones_are_worse():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    # Falls through 1, where validation is best, and on.
    schedule = Schedule(steps=40, rate=0.1, warmup=0.0, checks=40)
    result = recover(
        model,
        lambda net, x: net(x).sum(),
        lambda generator: [torch.ones(1, 1)],
        schedule,
        validate=lambda net: abs(float(net[0].weight.detach()) - 1.0),
    )
    assert 0 < result.best.step < 40
    assert float(model[0].weight.detach()) == pytest.approx(1.0, abs=0.1)


def test_without_validation_the_last_state_is_kept():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    result = recover(
        model,
        lambda net, x: net(x).sum(),
        lambda generator: [torch.ones(1, 1)],
        Schedule(steps=3, checks=2),
    )
    assert result.best is result.checks[-1]
    assert result.best.step == 3


def test_time_limits_count_training_and_not_watching():
    now = [0.0]

    def loss(net, x):
        now[0] += 10.0
        return net(x).sum()

    def watch(net):
        now[0] += 1000.0
        return 5.0

    model = nn.Sequential(nn.Linear(1, 1)).train()
    result = recover(
        model,
        loss,
        lambda generator: [torch.ones(1, 1)],
        Schedule(steps=1000, minutes=1.0, checks=2),
        watch=watch,
        clock=lambda: now[0],
    )
    assert result.steps == 6
    assert result.checks[-1].minutes == pytest.approx(1.0)
    assert [check.score for check in result.checks] == [5.0] * 3
    assert model.training


def test_bad_gradients_are_skipped_and_three_in_a_row_end_the_run():
    model = nn.Sequential(nn.Linear(2, 2))
    calls = []

    def loss(net, x):
        calls.append(x)
        y = net(x).sum()
        return y * math.nan if len(calls) in (2, 3, 5) else y

    data = [torch.ones(1, 2)]
    result = recover(model, loss, lambda generator: data, Schedule(steps=6))
    assert result.skipped == 3
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=r"3 steps in a row .* 0.weight, loss nan"):
        recover(
            model,
            lambda net, x: net(x).sum() * math.nan,
            lambda generator: data,
            Schedule(steps=6),
        )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_error_leaves_the_best_state():
    model = pruned_model()
    gossamer.compact(model)
    goal, data = objective(), batches()
    best = {}

    def keep(check):
        best.update({n: p.detach().clone() for n, p in model.named_parameters()})

    def loss(net, batch):
        if len(calls) == 7:
            raise RuntimeError("power cut")
        calls.append(batch)
        return goal(net, batch)

    calls = []
    with pytest.raises(RuntimeError, match="power cut"):
        recover(model, loss, shuffled(data), Schedule(steps=20, checks=4), on_check=keep)
    assert all(torch.equal(best[n], p) for n, p in model.named_parameters())


def test_bad_input_is_named():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(InputError, match="holds no batch"):
        recover(model, lambda net, x: net(x).sum(), lambda generator: [], Schedule())
    with pytest.raises(InputError, match="no parameter of the model takes gradients"):
        recover(
            model.requires_grad_(False),
            lambda net, x: net(x).sum(),
            lambda generator: [],
            Schedule(),
        )
    for settings, words in [
        ({"steps": 0}, "steps must be at least 1"),
        ({"checks": 0}, "checks must be at least 1"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"minutes": 0.0}, "minutes must be above 0"),
        ({"warmup": 1.0}, "warmup must be in"),
        ({"decay": "step"}, "decay must be linear or cosine"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
    ]:
        with pytest.raises(InputError, match=words):
            Schedule(**settings)


def test_masked_layers_are_compact_inside_and_the_same_objects_afterwards():
    model = pruned_model()
    layers = [model[0], model[2]]
    weights = [layer.weight_parameter() for layer in layers]
    masks = [layer.mask() for layer in layers]
    with compact_form(model, 32) as choices:
        assert len(choices) == 2
        assert isinstance(model[0], Linear)
        assert all(weight.numel() == 0 for weight in weights)
        with torch.no_grad():
            model[0].values.fill_(3.0)
    assert [model[0], model[2]] == layers
    assert [layer.weight_parameter() for layer in layers] == weights
    assert torch.equal(layers[0].masked_weight(), torch.where(masks[0], 3.0, 0.0))
    assert torch.equal(layers[0].weight_parameter() != 0, masks[0])


def test_the_masked_form_comes_back_after_an_error_and_ties_hold():
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    gossamer.sparsify(model, sparsity=0.5, ignore=None)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="stop"), compact_form(model, 8):
        raise RuntimeError("stop")
    assert isinstance(model[0], MaskedLinear)
    assert model[0] is model[2]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_layers_that_were_compact_stay_compact():
    model = pruned_model()
    gossamer.compact(model)
    layer = model[0]
    with compact_form(model, 8):
        assert model[0] is layer
    assert model[0] is layer
