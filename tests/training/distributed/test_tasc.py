# SPDX-License-Identifier: Apache-2.0
"""TASC on one rank, bucket by bucket: what is sent and what is left add up, and can be saved."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer.nn as gnn
from gossamer.errors import ArtifactError, DistributedError, InputError
from gossamer.nn.surgery.compaction import compact
from gossamer.patterns import Unstructured
from gossamer.training.checkpoint.state_tree import decode, encode
from gossamer.training.distributed.tasc import CurvatureProbe, RowAdamW, RowSGD, Tasc
from gossamer.training.distributed.tasc import exchange as tasc_module
from gossamer.training.distributed.tasc.direct import tasc_hook
from gossamer.training.distributed.tasc.forecast import ExchangeForecast


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    store = dist.HashStore()
    dist.init_process_group(
        "gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    yield
    dist.destroy_process_group()


class Bucket:
    """What DDP gives to a hook."""

    def __init__(self, params, gradients, last):
        self._params, self._last = params, last
        self._buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])

    def parameters(self):
        return self._params

    def buffer(self):
        return self._buffer

    def is_last(self):
        return self._last


def reduce(tasc, params, gradients, per_bucket=2):
    """One step: the gradients that come out, in buckets as DDP makes them, last layers first."""
    order = list(range(len(params)))[::-1]
    results, groups = {}, [order[i : i + per_bucket] for i in range(0, len(order), per_bucket)]
    waiting = []
    for group in groups:
        bucket = Bucket(
            [params[i] for i in group], [gradients[i] for i in group], group is groups[-1]
        )
        waiting.append((group, tasc_hook(tasc, bucket)))
    for group, future in waiting:
        flat, at = future.wait(), 0
        for i in group:
            results[i] = flat[at : at + params[i].numel()].view(params[i].shape).clone()
            at += params[i].numel()
    return [results[i] for i in range(len(params))]


def model_of(kind, seed=0):
    torch.manual_seed(seed)
    if kind == "conv":
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1)).double()
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 50)).double()
    if kind == "compact":
        for index in (0, 2):
            mask = torch.rand(model[index].weight.shape) < 0.6
            model[index] = gnn.MaskedLinear.from_dense(model[index], mask, Unstructured())
        compact(model, mode="jit")
    return model


def gradients_of(params, step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params]


def made(kind="dense", **settings):
    model = model_of(kind)
    settings = {"density": 0.4, "start": 2, "min_gain": 0, "max_age": 6} | settings
    return list(model.parameters()), Tasc(model, **settings)


@pytest.mark.parametrize("kind", ["dense", "conv", "compact"])
@pytest.mark.parametrize("per_bucket", [1, 2, 10])
def test_what_was_sent_and_what_is_left_is_what_came(kind, per_bucket):
    params, tasc = made(kind)
    came = [torch.zeros_like(p) for p in params]
    sent = [torch.zeros_like(p) for p in params]
    names = [name for name, _, _ in tasc.blocks()]
    for step in range(15):
        gradients = gradients_of(params, step)
        for total, gradient in zip(came, gradients, strict=True):
            total += gradient
        for total, result in zip(sent, reduce(tasc, params, gradients, per_bucket), strict=True):
            total += result
    assert tasc.structure() is not None
    assert not tasc.structure().all()
    left = tasc.residuals()
    for name, total, gone in zip(names, came, sent, strict=True):
        gone = gone.detach().reshape(-1).clone()
        if name in left:
            gone[: left[name].numel()] += left[name].reshape(-1)
        torch.testing.assert_close(gone, total.detach().reshape(-1), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**31), st.floats(0.3, 0.95), st.integers(2, 12))
def test_traffic_and_age_stay_within_their_limits(seed, density, max_age):
    params, tasc = made(density=density, max_age=max_age)
    total = sum(p.numel() for p in params)
    waiting = torch.zeros(80)
    for step in range(20):
        reduce(tasc, params, gradients_of(params, seed + step))
        waiting += 1
        chosen = tasc.structure()
        waiting[torch.ones_like(waiting, dtype=torch.bool) if chosen is None else chosen] = 0
        assert waiting.max() < max_age
        if chosen is not None and max_age > 4 / density:
            sizes = torch.tensor([40] * 30 + [30] * 50)
            assert int(sizes[chosen].sum()) + 80 + 80 <= density * total


def test_all_blocks_sent_is_the_gradient_itself():
    params, tasc = made(density=1.0, max_age=1)
    for step in range(5):
        gradients = gradients_of(params, step)
        for result, gradient in zip(reduce(tasc, params, gradients), gradients, strict=True):
            assert torch.equal(result, gradient)


@pytest.mark.parametrize("kind", ["dense", "compact"])
def test_a_restored_state_goes_on_to_the_same_bits(kind):
    params, tasc = made(kind)
    for step in range(7):
        reduce(tasc, params, gradients_of(params, step))
    plain, tensors = encode(tasc.state_dict(), copy=True)
    state = decode(json.loads(json.dumps(plain)), tensors, "test")
    others, restored = made(kind)
    restored.load_state_dict(state)
    for step in range(7, 15):
        gradients = gradients_of(params, step)
        mine, theirs = reduce(tasc, params, gradients), reduce(restored, others, gradients)
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        assert torch.equal(tasc.structure(), restored.structure())
    for name, held in tasc.residuals().items():
        assert torch.equal(held, restored.residuals()[name])


def test_a_state_of_another_model_is_refused():
    _, tasc = made("dense")
    _, other = made("conv")
    with pytest.raises(ArtifactError, match="one side only"):
        tasc.load_state_dict(other.state_dict())
    state = tasc.state_dict()
    state["parameters"]["0.weight"]["residual"] = torch.zeros(30, 41)
    with pytest.raises(ArtifactError, match=r"0\.weight: expected blocks \[30, 40\]"):
        tasc.load_state_dict(state)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_step_that_is_not_finite_loses_nothing(at):
    params, tasc = made()
    for step in range(5):
        reduce(tasc, params, gradients_of(params, step))
    before = {name: held.clone() for name, held in tasc.residuals().items()}
    ages = {n: p["ages"].clone() for n, p in tasc.state_dict()["parameters"].items()}
    gradients = gradients_of(params, 5)
    gradients[at].view(-1)[3] = float("inf")
    results = reduce(tasc, params, gradients, per_bucket=1)
    assert not torch.isfinite(results[at]).any()
    for index, (name, _, _) in enumerate(tasc.blocks()):
        if name not in before:
            continue
        added = torch.zeros(()) if index == at else gradients[index].view(before[name].shape)
        torch.testing.assert_close(tasc.residuals()[name], before[name] + added)
        assert torch.equal(tasc.state_dict()["parameters"][name]["ages"], ages[name] + 1)
    assert all(torch.isfinite(r).all() for r in reduce(tasc, params, gradients_of(params, 6)))


def test_ranks_that_differ_are_found():
    params, tasc = made()
    for step in range(3):
        reduce(tasc, params, gradients_of(params, step))
    packets = tasc._packets
    packets[0]._checksum += 1
    assert not packets[0].agrees(1)
    tasc._differs = True
    with pytest.raises(DistributedError, match="different blocks"):
        tasc.state_dict()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"density": 0.0}, "density"),
        ({"density": 1.5}, "density"),
        ({"density": 0.001}, "nothing for blocks"),
        ({"max_age": 0}, "max_age"),
        ({"start": 1}, "start"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        made(**wrong)


@pytest.mark.parametrize(("seconds", "structured"), [(0.9, False), (0.7, True)])
def test_a_forecast_decides_and_is_kept(monkeypatch, seconds, structured):
    forecast = ExchangeForecast(1.0, 0.1, seconds)
    monkeypatch.setattr(tasc_module, "measure_forecast", lambda *_: forecast)
    params, tasc = made(min_gain=1.2)
    gradients = gradients_of(params, 2)
    for step in range(3):
        with nullcontext() if structured or step < 2 else pytest.warns(match="stay dense"):
            results = reduce(tasc, params, gradients)
    sent_all = all(torch.equal(a, b) for a, b in zip(results, gradients, strict=True))
    assert sent_all is not structured
    assert tasc.active is structured
    others, restored = made(min_gain=1.2)
    restored.load_state_dict(tasc.state_dict())
    reduce(restored, others, gradients)
    assert (restored.structure() is not None) is structured


@pytest.mark.parametrize("past_buckets", [False, True])
@pytest.mark.parametrize("kind", ["dense", "compact"])
def test_a_forecast_is_rehearsed_and_changes_nothing(kind, past_buckets):
    results = {}
    for min_gain in (0, 1e-9):
        params, tasc = made(kind, min_gain=min_gain)
        tasc.past_buckets = past_buckets
        results[min_gain] = [reduce(tasc, params, gradients_of(params, step)) for step in range(6)]
        assert tasc.structure() is not None
    seconds = asdict(tasc.forecast)
    assert len(seconds) == 3
    assert min(seconds.values()) > 0
    for plain, measured in zip(*results.values(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(plain, measured, strict=True))


def test_one_probe_is_exact_where_the_hessian_is_diagonal():
    model = model_of("dense")
    tasc = Tasc(model, density=0.4, start=2, min_gain=0)
    weights = {n: torch.rand(p.shape, dtype=p.dtype) for n, p in model.named_parameters()}
    loss = sum((weights[n] * p**2).sum() for n, p in model.named_parameters()) / 2
    traces = CurvatureProbe(tasc, model).measure(loss)
    expected = torch.cat([weights[n].sum(1) for n in ("0.weight", "2.weight")])
    torch.testing.assert_close(traces, expected)


def test_many_probes_find_the_traces_of_a_full_hessian():
    torch.manual_seed(1)
    model = nn.Linear(6, 4, bias=False).double()
    tasc = Tasc(model, density=0.9, start=2, min_gain=0)
    root = torch.randn(24, 24, dtype=torch.float64)
    hessian = root @ root.T
    flat = model.weight.reshape(-1)
    loss = flat @ hessian @ flat / 2
    traces = CurvatureProbe(tasc, model).measure(loss, num_probes=1000)
    expected = hessian.diagonal().view(4, 6).sum(1)
    torch.testing.assert_close(traces, expected, rtol=0.05, atol=0)


def test_curvature_raises_the_score_of_sharp_blocks():
    params, tasc = made(density=0.4)
    gradients = [torch.ones_like(p) for p in params]
    for _ in range(2):
        reduce(tasc, params, gradients)
    traces = torch.zeros(80)
    traces[70:] = 100.0
    tasc.set_curvature(traces)
    reduce(tasc, params, gradients)
    assert tasc.structure()[70:].all()


@pytest.mark.parametrize("kind", ["dense", "compact"])
@pytest.mark.parametrize(
    ("rows", "stock"),
    [
        (
            lambda p, t: RowSGD(p, t, 0.1, momentum=0.9),
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        ),
        (lambda p, t: RowAdamW(p, t, 0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    ],
)
def test_row_optimizers_are_the_stock_ones_when_all_is_sent(kind, rows, stock):
    params, tasc = made(kind, density=1.0, max_age=1)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    mine, theirs = rows(params, tasc), stock(others)
    for step in range(6):
        gradients = gradients_of(params, step)
        for param, other, result, gradient in zip(
            params, others, reduce(tasc, params, gradients), gradients, strict=True
        ):
            param.grad, other.grad = result, gradient
        mine.step()
        theirs.step()
    assert tasc.sent(params[0]) is not None
    for param, other in zip(params, others, strict=True):
        torch.testing.assert_close(param, other, rtol=1e-12, atol=1e-14)


def test_row_optimizers_leave_blocks_alone_that_were_not_sent():
    params, tasc = made()
    optimizer = RowAdamW(params, tasc, 0.01)
    for step in range(6):
        for param, result in zip(
            params, reduce(tasc, params, gradients_of(params, step)), strict=True
        ):
            param.grad = result
        before = [p.detach().clone() for p in params]
        moments = [optimizer.state[p]["exp_avg"].clone() if step else None for p in params]
        optimizer.step()
        for index in (0, 2):
            if step < 2:
                continue
            _, rows, _ = tasc.sent(params[index])
            still = torch.ones(len(params[index]), dtype=torch.bool)
            still[rows] = False
            assert torch.equal(params[index].detach()[still], before[index][still])
            moment = optimizer.state[params[index]]["exp_avg"]
            assert torch.equal(moment[still], moments[index][still])
            assert not torch.equal(params[index].detach()[rows], before[index][rows])


def test_adam_lives_through_the_steps_that_a_block_waited():
    """A gradient that arrives as the sum of a steps does what a steps with its mean would do."""
    params, tasc = made(density=0.3, max_age=20)
    mine = RowAdamW(params, tasc, 1e-3, weight_decay=0.1, betas=(0.9, 0.99))
    tested = 0
    for step in range(12):
        for param, result in zip(
            params, reduce(tasc, params, gradients_of(params, step)), strict=True
        ):
            param.grad = result
        before = params[0].detach().clone()
        state = {k: v.clone() for k, v in mine.state[params[0]].items()}
        mine.step()
        if tasc.sent(params[0]) is None:
            continue
        _, rows, waited = tasc.sent(params[0])
        for row, steps in zip(rows.tolist(), waited.tolist(), strict=True):
            mean = params[0].grad[row] / steps
            moment, square = state["exp_avg"][row], state["exp_avg_sq"][row]
            moved = torch.zeros_like(mean)
            for _ in range(steps):
                moment = 0.9 * moment + 0.1 * mean
                square = 0.99 * square + 0.01 * steps * mean**2
                moved += moment
            root = (square / (1 - 0.99 ** (step + 1))).sqrt() + 1e-8
            shrunk = before[row] * (1 - 1e-4) ** steps
            expected = shrunk - 1e-3 * moved / (1 - 0.9 ** (step + 1)) / root
            torch.testing.assert_close(params[0].detach()[row], expected, rtol=1e-10, atol=1e-14)
            tested += steps > 1
    assert tested > 5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p, t: RowSGD(p, t, momentum=1.0), "momentum"),
        (lambda p, t: RowSGD(p, t, -1.0), "negative"),
        (lambda p, t: RowAdamW(p, t, betas=(0.9, 1.0)), "betas"),
    ],
)
def test_wrong_settings_of_row_optimizers_are_named(build, message):
    params, tasc = made()
    with pytest.raises(InputError, match=message):
        build(params, tasc)
