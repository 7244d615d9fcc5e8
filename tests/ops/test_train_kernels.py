# SPDX-License-Identifier: Apache-2.0
"""The three products of a training step against a float64 dense oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.bits import pack_bits
from gossamer.ops import _native
from gossamer.ops.kernels import available_kernels
from gossamer.ops.training import linear_kernels as train_kernels

SETS = available_kernels()
EDGES = [(1, 1), (1, 300), (300, 1), (17, 95), (96, 96), (97, 193), (130, 257), (513, 40)]


@pytest.fixture(params=SETS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)


def case(rows, columns, tokens, density, seed=0):
    """(mask, x, dY) and the values at the mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    x = torch.randn(tokens, columns, generator=generator)
    grad = torch.randn(tokens, rows, generator=generator)
    values = torch.randn(int(mask.sum()), generator=generator)
    return mask, values, x, grad


def assert_near(found, first, second, bias=None):
    """`found` is first @ second in float64, up to a rounding per term of the sum of magnitudes."""
    first, second = first.double(), second.double()
    wanted, scale = first @ second, first.abs() @ second.abs()
    if bias is not None:
        wanted, scale = wanted + bias.double(), scale + bias.double().abs()
    bound = (first.shape[1] + 4) * 2.0**-24 * scale + 1e-30
    assert found.shape == wanted.shape
    assert ((found.double() - wanted).abs() <= bound).all()


def check_products(mask, values, x, grad, bias=None):
    bits = pack_bits(mask)
    weight = torch.zeros(mask.shape).masked_scatter(mask, values)
    assert_near(train_kernels.linear(x, values, bits, bias), x, weight.T, bias)
    assert_near(train_kernels.grad_input(grad, values, bits, mask.shape[1]), grad, weight)
    found = train_kernels.grad_values(grad, x, bits, values.numel())
    assert found.shape == values.shape
    # Pruned places hold the oracle's own numbers, so that the whole matrix can be compared.
    dense = (grad.double().T @ x.double()).masked_scatter(mask, found.double())
    assert_near(dense, grad.T, x)


@pytest.mark.parametrize(("rows", "columns"), EDGES)
@pytest.mark.parametrize("density", [0.05, 0.12, 0.4])
def test_edge_sizes(kernels, rows, columns, density):
    mask, values, x, grad = case(rows, columns, 70, density)
    check_products(mask, values, x, grad, torch.randn(rows))


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 16, 33, 40, 41, 64, 65, 129])
def test_token_remainders(kernels, tokens):
    check_products(*case(40, 100, tokens, 0.3))


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (5, 0), (0, 0)])
def test_no_rows_or_columns(kernels, rows, columns):
    check_products(*case(rows, columns, 3, 0.5))


@pytest.mark.parametrize("density", [0.0, 1e-3, 1.0])
def test_none_few_and_all_kept(kernels, density):
    check_products(*case(65, 130, 70, density))


def test_empty_and_full_rows_and_columns(kernels):
    mask, _, x, grad = case(200, 210, 66, 0.1)
    mask[3:60] = False
    mask[:, 100:150] = False
    mask[61] = True
    mask[:, 7] = True
    check_products(mask, torch.randn(int(mask.sum())), x, grad)


@given(
    rows=st.integers(1, 140),
    columns=st.integers(1, 210),
    tokens=st.integers(0, 70),
    density=st.floats(0, 1),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_any_shape(rows, columns, tokens, density, seed):
    check_products(*case(rows, columns, tokens, density, seed))


def test_strided_expanded_and_transposed_operands():
    mask, values, x, grad = case(24, 48, 30, 0.3)
    wide_x, wide_grad = torch.randn(30, 96), torch.randn(30, 48)
    check_products(mask, values, wide_x[:, :48], wide_grad[:, 24:])
    check_products(mask, values, wide_x[:, ::2], wide_grad[:, ::2])
    check_products(mask, values, torch.randn(48, 30).T, torch.randn(24, 30).T)
    check_products(mask, values, x[:1].expand(30, 48), grad[:1].expand(30, 24))
    check_products(mask, torch.randn(2 * values.numel())[::2], x, torch.ones(()).expand(30, 24))


def test_infinities_stay_where_they_belong(kernels):
    mask, values, x, grad = case(20, 30, 5, 0.5)
    values[3] = torch.inf
    y = train_kernels.linear(x, values, pack_bits(mask), None)
    row = int(mask.nonzero()[3, 0])
    assert not y[:, row].isfinite().any()
    assert y[:, [r for r in range(20) if r != row]].isfinite().all()
    grad[2, 1] = torch.nan
    found = train_kernels.grad_values(grad, x, pack_bits(mask), values.numel())
    assert torch.equal(found.isnan(), mask.nonzero()[:, 0] == 1)


@pytest.mark.parametrize("density", [0.05, 0.3])
def test_threads_do_not_change_a_bit(density):
    mask, values, x, grad = case(700, 300, 200, density)
    bits, before = pack_bits(mask), torch.get_num_threads()

    def products():
        return (
            train_kernels.linear(x, values, bits, None),
            train_kernels.grad_input(grad, values, bits, 300),
            train_kernels.grad_values(grad, x, bits, values.numel()),
        )

    try:
        torch.set_num_threads(1)
        one = products()
        torch.set_num_threads(2)
        assert all(torch.equal(a, b) for a, b in zip(one, products(), strict=True))
    finally:
        torch.set_num_threads(before)


def test_operands_that_do_not_fit_are_named():
    fine = torch.ones(2, 2)
    assert train_kernels.why_unusable(fine, None, fine) is None
    assert "torch.bfloat16" in train_kernels.why_unusable(fine, fine.bfloat16())
    assert "meta" in train_kernels.why_unusable(fine.to("meta"))


def test_binding_refuses_what_it_cannot_check_later():
    bits = np.array([[7]], np.uint8)
    values, x, y = np.ones(3, np.float32), np.ones(3, np.float32), np.full(3, 42, np.float32)
    v, p, q = (array.ctypes.data for array in (values, x, y))
    products = [
        (_native.train_linear, 3, 1, 1),
        (_native.train_grad_input, 1, 3, 1),
    ]
    for product, x_stride, y_stride, tokens in products:
        good = [v, 3, bits, 3, p, tokens, x_stride, q, y_stride, 0, "reference"]
        for place, bad in [
            (0, 0), (1, 2), (2, np.array([[15]], np.uint8)), (3, 9), (4, 0), (5, -1),
            (6, x_stride - 1), (7, 0), (8, y_stride - 1), (10, "sse9"),
        ]:  # fmt: skip
            with pytest.raises(ValueError, match=r"must|stride|sse9|mask_bits"):
                product(*good[:place], bad, *good[place + 1 :])
    good = [q, 3, bits, 3, p, 1, p, 3, 1, "reference"]
    for place, bad in [(0, 0), (1, 4), (3, 2), (4, 0), (5, 0), (6, 0), (7, 2), (8, -1), (9, "x")]:
        with pytest.raises(ValueError, match=r"must|stride|'x'|mask_bits"):
            _native.train_grad_values(*good[:place], bad, *good[place + 1 :])
    assert (y == 42).all()
