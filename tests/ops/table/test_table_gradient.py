# SPDX-License-Identifier: Apache-2.0
"""Gradients and steps of rows against float64, to the bit between sets, threads and forms."""

import pytest
import torch
from table_cases import batch, floats, generator, row_gradient, rows_of

from gossamer.errors import InputError
from gossamer.ops.kernels import available_kernels
from gossamer.ops.table import Bags, Rounding, Rows, encode_rows
from gossamer.ops.table.training import Backward, RowGradient, RowRule, move_rows, trained_pool
from gossamer.ops.table.training.gradient import gradient_by_torch

KINDS = ("sum", "mean", "weighted")
WIDTHS = (1, 3, 16, 17, 64, 130)


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def spread(gradient, num_rows):
    out = torch.zeros(num_rows, gradient.values.shape[1])
    out[gradient.rows] = gradient.values
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_gradients_equal_float64(kernels, width, kind):
    bags, grad = batch(width, kind=kind, padding=3), floats(2, 9, width)
    gradient = Backward(Rows(floats(1, 40, width), width), bags, grad).gradient()
    expected = row_gradient(grad, bags, 40)
    assert torch.allclose(spread(gradient, 40).double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(gradient.rows, gradient.rows.unique())
    assert 3 not in gradient.rows
    assert set(gradient.rows.tolist()) == set(bags.ids.tolist()) - {3}


@pytest.mark.parametrize("kind", KINDS)
def test_sets_and_threads_give_the_same_bits(monkeypatch, kind):
    bags = batch(1, num_ids=3000, num_bags=2000, kind=kind)  # counters sort, and threads share
    grad, weight = floats(2, 2000, 19), floats(3, 3000, 19)
    found, before = [], torch.get_num_threads()
    for kernels in available_kernels():
        for threads in (1, 2, 3):
            monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
            torch.set_num_threads(threads)
            try:
                found.append(Backward(Rows(weight, 19), bags, grad).gradient())
            finally:
                torch.set_num_threads(before)
    for gradient in found[1:]:
        assert torch.equal(gradient.rows, found[0].rows)
        assert torch.equal(gradient.values, found[0].values)
    by_torch = gradient_by_torch(Rows(weight, 19), bags, grad)
    assert torch.equal(by_torch.rows, found[0].rows)
    assert torch.allclose(by_torch.values, found[0].values, atol=1e-5)


def test_autograd_passes_gradients_straight_through():
    stock = torch.nn.EmbeddingBag(40, 12, mode="sum").double()
    weight = torch.nn.Parameter(stock.weight.detach().float())
    bags = batch(3, kind="weighted")
    weights = bags.weights.clone().requires_grad_()
    asked = Bags(bags.ids, bags.offsets, 0, bags.num_bags, weights)
    rounding = Rounding(4)
    scales = rounding.scales(weight.detach())
    y = trained_pool(Rows(weight, 12, rounding, scales), asked, lambda seen: None)
    grad = floats(4, bags.num_bags, 12)
    y.backward(grad)
    assert weight.grad.is_sparse
    assert weight.grad._nnz() == len(bags.ids.unique())
    expected = row_gradient(grad, bags, 40)
    assert torch.allclose(weight.grad.to_dense().double(), expected, atol=1e-5)
    # The weights of positions see the rounded rows.
    rounded = rounding.rounded(weight.detach(), scales)
    bag_of = torch.searchsorted(
        bags.offsets[1:].contiguous(), torch.arange(len(bags.ids)), right=True
    )
    expected = (rounded[bags.ids].double() * grad[bag_of].double()).sum(1)
    assert torch.allclose(weights.grad.double(), expected, atol=1e-4)


def test_an_expanded_gradient_and_an_empty_batch():
    weight = torch.nn.Parameter(floats(0, 10, 6))
    trained_pool(
        Rows(weight, 6), Bags.of(torch.tensor([[1, 1, 2]])), lambda seen: None
    ).sum().backward()
    assert weight.grad.to_dense()[1].tolist() == [2.0] * 6
    weight.grad = None
    empty = Bags.of(torch.empty(0, 3, dtype=torch.int64))
    trained_pool(Rows(weight, 6), empty, lambda seen: None).sum().backward()
    assert weight.grad._nnz() == 0


def oracle(rule, weight, gradient, state):
    """One step in float64."""
    w, g = weight.double(), gradient.values.double()
    rows = gradient.rows
    if rule.name == "sgd":
        w[rows] -= rule.lr * g
    elif rule.name == "adagrad":
        state["sums"][rows] += g.square().mean(1)
        w[rows] -= rule.lr / (state["sums"][rows].sqrt() + rule.eps)[:, None] * g
    else:
        m, v = state["means"], state["squares"]
        m[rows] += (g - m[rows]) * rule.mean_rate
        v[rows] += (g.square() - v[rows]) * rule.square_rate
        w[rows] -= rule.lr * m[rows] / (v[rows].sqrt() + rule.eps)
    return w


def rule_of(name, num_rows, width):
    state = {
        "sums": torch.rand(num_rows, generator=generator(1)),
        "means": floats(2, num_rows, width),
        "squares": floats(3, num_rows, width).square(),
    }
    keys = {"sgd": (), "adagrad": ("sums",), "adam": ("means", "squares")}[name]
    return RowRule(name, 0.1, 1e-3, 0.1, 0.01, **{key: state[key] for key in keys}, noise=7), state


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("width", WIDTHS)
def test_steps_equal_float64_on_touched_rows(kernels, width, name):
    before = floats(5, 40, width)
    gradient = RowGradient(torch.tensor([0, 3, 4, 39]), floats(6, 4, width))
    rule, state = rule_of(name, 40, width)
    expected = oracle(rule, before, gradient, {k: v.double() for k, v in state.items()})
    after = before.clone()
    move_rows(Rows(after, width), gradient, rule)
    assert torch.allclose(after.double(), expected, rtol=1e-5, atol=1e-6)
    others = [row for row in range(40) if row not in (0, 3, 4, 39)]
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("bits", [32, 8, 4])
def test_steps_have_the_same_bits_on_every_set_and_fused(monkeypatch, bits, name):
    if bits != 32 and name == "adam":
        pytest.skip("codes are trained by SGD and Adagrad")
    bags, grad, width = batch(1, num_ids=300, num_bags=200), floats(2, 200, 21), 21
    weight = floats(3, 300, width)
    found = []
    for kernels in available_kernels():
        for fused in (False, True):
            monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
            rule, state = rule_of(name, 300, width)
            if bits == 32:
                rows = Rows(weight.clone(), width)
            else:
                rounding = Rounding(bits, "row")
                rows = Rows(*_with_width(encode_rows(weight, rounding), width, rounding))
            backward = Backward(rows, bags, grad)
            if fused:
                backward.update(rule.native())
            else:
                move_rows(rows, backward.gradient(), rule)
            found.append([rows.data, rows.scales, *state.values()])
    for other in found[1:]:
        assert all(a is b or torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert not torch.equal(found[0][0], weight if bits == 32 else encode_rows(weight, rounding)[0])


def _with_width(encoded, width, rounding):
    codes, scales = encoded
    return codes, width, rounding, scales


@pytest.mark.parametrize("bits", [8, 4])
def test_stochastic_rounding_is_right_on_average(bits):
    rounding, width, steps = Rounding(bits, "row"), 16, 4000
    weight = floats(0, 1, width)
    rule = {"lr": 1.0}
    start, scales = encode_rows(weight, rounding)
    move = floats(1, 1, width) * float(scales) * 0.3
    total = torch.zeros(width, dtype=torch.float64)
    for step in range(steps):
        rows = Rows(start.clone(), width, rounding, scales.clone())
        gradient = RowGradient(torch.tensor([0]), move)
        move_rows(rows, gradient, RowRule("sgd", **rule, noise=step * 0xBF58476D1CE4E5B9 % 2**64))
        total += rows.floats()[0].double()
    before = Rows(start, width, rounding, scales).floats()[0].double()
    error = total / steps - (before - move[0].double())
    # Rounding errors are below one step of the grid; five standard deviations of their mean.
    inside = Rows(start, width, rounding, scales).floats()[0].abs() < 0.9 * weight.abs().max()
    assert (error.abs() <= 5 * float(scales) * 0.5 / steps**0.5)[inside].all()


def test_noise_is_a_function_of_seed_and_row():
    rounding, weight = Rounding(8, "row"), floats(0, 3, 32).expand(3, 32).contiguous()
    weight[1:] = weight[0]
    gradient = RowGradient(torch.arange(3), floats(1, 1, 32).expand(3, 32).contiguous())

    def after(noise):
        codes, scales = encode_rows(weight, rounding)
        rows = Rows(codes, 32, rounding, scales)
        move_rows(rows, gradient, RowRule("sgd", 0.01, noise=noise))
        return rows.data

    assert torch.equal(after(1), after(1))
    assert not torch.equal(after(1), after(2))
    assert not torch.equal(after(1)[0], after(1)[1])


def test_a_column_without_gradient_keeps_its_code():
    rounding, weight = Rounding(4, "row"), floats(0, 20, 64)
    codes, scales = encode_rows(weight, rounding)
    rows = Rows(codes.clone(), 64, rounding, scales.clone())
    values = floats(1, 20, 64) * 1e-3
    values[:, ::2] = 0
    move_rows(rows, RowGradient(torch.arange(20), values), RowRule("sgd", 0.1, noise=5))
    kept = rows.scales == scales
    assert kept.float().mean() > 0.5
    low = 0x0F  # even columns
    assert torch.equal(rows.data[kept] & low, codes[kept] & low)


def test_steps_that_make_no_sense_are_refused():
    rows, gradient = Rows(floats(0, 5, 3), 3), RowGradient(torch.tensor([4, 4]), floats(1, 2, 3))
    with pytest.raises(ValueError, match="ascend"):
        move_rows(rows, gradient, RowRule("sgd", 0.1))
    with pytest.raises(ValueError, match="within the table"):
        move_rows(rows, RowGradient(torch.tensor([5]), floats(1, 1, 3)), RowRule("sgd", 0.1))
    with pytest.raises(ValueError, match="needs its sums"):
        move_rows(rows, RowGradient(torch.tensor([4]), floats(1, 1, 3)), RowRule("adagrad", 0.1))
    double = Rows(floats(0, 5, 3).double(), 3)
    with pytest.raises(InputError, match="float32 or codes"):
        move_rows(double, RowGradient(torch.tensor([4]), floats(1, 1, 3)), RowRule("sgd", 0.1))


def test_rounded_rows_follow_the_rule_of_their_row():
    weight = floats(0, 20, 24)
    rows = rows_of(weight, Rounding(2, "row"))
    assert torch.equal(rows.floats().abs().amax(1), weight.abs().amax(1))
