# SPDX-License-Identifier: Apache-2.0
"""Recovery on the training loop: rates, limits, the best state, bits, kills, faults."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from loop_tools import same
from torch import nn

import gossamer
from gossamer.data import ShuffledBatches
from gossamer.errors import InputError
from gossamer.nn import Linear, MaskedLinear
from gossamer.nn.batch import Batch
from gossamer.training.checkpoint import CheckpointStore, CheckpointWriter
from gossamer.training.loop import Surroundings
from gossamer.training.loop.endings import TrainingDiverged
from gossamer.training.recovery import HELD_OUT, RecoverySchedule, compact_form, fake_int8, recover
from gossamer.training.recovery.distillation import DistillationObjective, Teacher, Terms


def dense_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 6)).eval()


def pruned_model():
    model = dense_model()
    gossamer.sparsify(model, sparsity=0.8, ignore=None)
    return model


def batches(count=6):
    generator = torch.Generator().manual_seed(3)
    return [Batch(torch.randn(32, 24, generator=generator)) for _ in range(count)]


def objective():
    return DistillationObjective(Teacher(dense_model()), Terms(logits=1.0))


class Checks:
    """Takes evaluations out of the records of a run."""

    def __init__(self):
        self.seen = []

    def write(self, record):
        if record["kind"] == "evaluation":
            self.seen.append(record)

    def close(self):
        pass


def test_the_rate_rises_then_falls_to_zero():
    rate = RecoverySchedule(steps=100, rate=2.0, warmup=0.1).loop_settings(keep_best=False).rate
    factors = [rate.factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == pytest.approx(1.0)
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.0)
    # A run by the clock stands between two steps.
    assert rate.factor(55.5) == pytest.approx((factors[55] + factors[56]) / 2)


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

    schedule, checks = RecoverySchedule(steps=80, rate=0.01, checks=4), Checks()
    around = Surroundings(sinks=(checks,))
    loop = recover(model, goal, data, schedule, validate=validate, around=around)
    assert [check["step"] for check in checks.seen] == [0, 20, 40, 60, 80]
    assert loop.step == 80
    assert loop.best.first == checks.seen[0][HELD_OUT]
    assert loop.best.value < 0.3 * loop.best.first
    assert validate(model) == pytest.approx(loop.best.value)
    minutes = [check["minutes"] for check in checks.seen]
    assert minutes == sorted(minutes)
    assert [layer.mask_digest() for layer in (model[0], model[2])] == digests
    assert all(parameter.grad is None for parameter in model.parameters())


def test_compact_and_masked_layers_take_the_same_steps():
    masked, compacted = pruned_model(), pruned_model()
    gossamer.compact(compacted)
    for model in (masked, compacted):
        recover(model, objective(), batches(), RecoverySchedule(steps=5, rate=0.01))
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
    schedule = RecoverySchedule(steps=40, rate=0.1, warmup=0.0, checks=40)
    result = recover(
        model,
        lambda net, x: net(x).sum(),
        [torch.ones(1, 1)],
        schedule,
        validate=lambda net: abs(float(net[0].weight.detach()) - 1.0),
    )
    assert 0 < result.best.step < 40
    assert result.step == 40
    assert float(model[0].weight.detach()) == pytest.approx(1.0, abs=0.1)


def test_without_validation_the_last_state_is_kept():
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    loop = recover(
        model, lambda net, x: net(x).sum(), [torch.ones(1, 1)], RecoverySchedule(steps=3, checks=2)
    )
    assert loop.best is None
    assert loop.step == 3


def test_time_limits_count_training_and_not_watching():
    now = [0.0]

    def loss(net, x):
        now[0] += 10.0
        return net(x).sum()

    def watch(net):
        now[0] += 1000.0
        return {"score": 5.0}

    model, checks = nn.Sequential(nn.Linear(1, 1)).train(), Checks()
    loop = recover(
        model,
        loss,
        [torch.ones(1, 1)],
        RecoverySchedule(steps=1000, minutes=1.0, checks=2),
        validate=lambda net: 0.0,
        around=Surroundings(watch=watch, sinks=(checks,), clock=lambda: now[0]),
    )
    assert loop.step == 6
    assert [check["minutes"] for check in checks.seen] == [0.0, 0.5, 1.0]
    assert [check["score"] for check in checks.seen] == [5.0] * 3
    assert model.training


def test_bad_gradients_are_skipped_and_three_in_a_row_end_the_run():
    model = nn.Sequential(nn.Linear(2, 2))
    calls = []

    def loss(net, x):
        calls.append(x)
        y = net(x).sum()
        return y * math.nan if len(calls) in (2, 3, 5) else y

    data = [torch.ones(1, 2)]
    loop = recover(model, loss, data, RecoverySchedule(steps=6))
    assert (loop.skipped, loop.step) == (3, 6)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingDiverged, match=r"3 times in a row, in 0.weight"):
        recover(model, lambda net, x: net(x).sum() * math.nan, data, RecoverySchedule(steps=6))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_error_leaves_the_best_state():
    model = pruned_model()
    gossamer.compact(model)
    goal, calls, best = objective(), [], {}

    def validate(net):
        best.update({n: p.detach().clone() for n, p in net.named_parameters()})
        return -len(calls)

    def loss(net, batch):
        if len(calls) == 7:
            raise RuntimeError("power cut")
        calls.append(batch)
        return goal(net, batch)

    with pytest.raises(RuntimeError, match="power cut"):
        recover(model, loss, batches(), RecoverySchedule(steps=20, checks=4), validate=validate)
    assert len(calls) == 7
    assert all(torch.equal(best[n], p) for n, p in model.named_parameters())


@pytest.mark.parametrize("quantise", [False, True])
@pytest.mark.parametrize("stop_at", [1, 6, 9])
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path, stop_at, quantise):
    # Other rows together give other last bits of a teacher: what it said must be in there too.
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(60, 24, generator=generator)

    def take(indices):
        order = tuple(indices.tolist())
        return Batch(rows[indices], samples=order)

    held = Batch(rows[:16], samples=tuple(range(16)))

    def run(store, stop=None):
        model = pruned_model()
        gossamer.compact(model)
        # What one process measured another need not find.
        model[0].mode = "jit" if stop is None else "kernel"
        goal = DistillationObjective(
            Teacher(dense_model()), Terms(embeddings=1.0, distance="squares")
        )

        def validate(net):
            with torch.no_grad():
                return float(goal(net, held)[0])

        def progress(step, steps):
            if step == stop:
                raise KeyboardInterrupt

        around = Surroundings(writer=CheckpointWriter(store), progress=progress)
        schedule = RecoverySchedule(steps=12, rate=0.01, checks=3, checkpoint_every=5)
        data = ShuffledBatches(len(rows), 16, 0, take)
        checkpoint = store.newest(pytest.fail)
        scales = fake_int8(model, "learned", calibrate=[held.run]) if quantise else nullcontext()
        with scales:
            try:
                loop = recover(
                    model, goal, data, schedule,
                    validate=validate, around=around, checkpoint=checkpoint,
                )  # fmt: skip
            except KeyboardInterrupt:
                return None
            return {n: p.clone() for n, p in model.state_dict().items()}, loop.best.state_dict()

    whole = run(CheckpointStore(tmp_path / "whole"), stop=100)
    store = CheckpointStore(tmp_path / "killed")
    assert run(store, stop=stop_at) is None
    assert store.steps()[-1] == stop_at // 5 * 5
    assert same(run(store), whole)


def test_bad_input_is_named():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(InputError, match="no batch to train on"):
        recover(model, lambda net, x: net(x).sum(), [], RecoverySchedule())
    with pytest.raises(InputError, match="no parameter of the model takes gradients"):
        recover(model.requires_grad_(False), lambda net, x: net(x).sum(), [], RecoverySchedule())
    for settings, words in [
        ({"steps": 0}, "must be at least 1"),
        ({"checks": 0}, "must be at least 1"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"warmup": 1.0}, "warmup must be in"),
    ]:
        with pytest.raises(InputError, match=words):
            RecoverySchedule(**settings)
    with pytest.raises(InputError, match="minutes: must be more than 0"):
        RecoverySchedule(minutes=0.0).loop_settings(keep_best=False)


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
