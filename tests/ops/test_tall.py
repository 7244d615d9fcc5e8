# SPDX-License-Identifier: Apache-2.0
"""Tall products: every kernel set against float64, gradients and theirs included."""

import gc

import pytest
import torch
import torch.nn.functional as F

from gossamer.ops import tall
from gossamer.ops.kernels import active_kernels, available_kernels
from gossamer.ops.results import drop_results, result_bytes

# rows, inputs, outputs: around the sizes of tiles (6, 8, 12, 14), vectors (8, 16) and blocks (128)
SIZES = [(0, 3, 4), (1, 1, 1), (5, 0, 3), (3, 4, 0), (13, 17, 7), (129, 16, 40), (300, 130, 65)]


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture(params=[*available_kernels(), "torch"])
def _kernels(request, monkeypatch):
    """Every kernel set, whichever is faster; and torch's products into the same results."""
    own = request.param != "torch"
    monkeypatch.setattr(tall, "_own_is_faster", lambda *product: own)
    if own:
        monkeypatch.setenv("GOSSAMER_KERNELS", request.param)


def with_gradients(function, leaves, dtype):
    inputs = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    y = function(*inputs)
    weight = normal(*y.shape).to(dtype)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), inputs)]


def assert_same(ours, theirs, leaves):
    found = with_gradients(ours, leaves, torch.float32)
    expected = with_gradients(theirs, leaves, torch.float64)
    for a, b in zip(found, expected, strict=True):
        scale = 1.0 + (float(b.abs().max()) if b.numel() else 0.0)
        torch.testing.assert_close(a.double() / scale, b / scale, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("sizes", SIZES)
class TestAgainstFloat64:
    def test_with_and_without_bias(self, sizes):
        rows, inputs, outputs = sizes
        leaves = [normal(rows, inputs), normal(outputs, inputs), normal(outputs)]
        assert_same(lambda x, w, b: tall._product(x, w, b, True), F.linear, leaves)
        assert_same(lambda x, w: tall._product(x, w, None, True), F.linear, leaves[:2])

    def test_the_other_way_round(self, sizes):
        rows, inputs, outputs = sizes
        leaves = [normal(rows, outputs), normal(outputs, inputs)]
        assert_same(lambda x, w: tall._product(x, w, None, False), torch.matmul, leaves)

    def test_sums_over_rows(self, sizes):
        rows, inputs, outputs = sizes
        leaves = [normal(rows, outputs), normal(rows, inputs)]
        assert_same(lambda g, x: tall._outer(g, x, False)[0], lambda g, x: g.t() @ x, leaves)
        ours = lambda g, x: torch.cat([t.flatten() for t in tall._outer(g, x, True)])  # noqa: E731
        theirs = lambda g, x: torch.cat([(g.t() @ x).flatten(), g.sum(0)])  # noqa: E731
        assert_same(ours, theirs, leaves)


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("sizes", [(700, 70, 130), (700, 16, 7), (2, 300, 9)])
def test_any_number_of_threads_gives_the_same_bits(sizes, kernels, monkeypatch):
    monkeypatch.setattr(tall, "_own_is_faster", lambda *product: True)
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    rows, inputs, outputs = sizes
    x, w, b, g = (
        normal(rows, inputs),
        normal(outputs, inputs),
        normal(outputs),
        normal(rows, outputs),
    )
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            parts = tall._product(x, w, b, True), tall._product(g, w, None, False)
            found.append([*parts, *tall._outer(g, x, True)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("_kernels")
def test_gradients_of_gradients():
    x, w = normal(9, 5).requires_grad_(), normal(4, 5).requires_grad_()

    def penalty(x, w, function):
        (dx,) = torch.autograd.grad(function(x, w).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(dx.pow(2).sum(), (x, w))

    found = penalty(x, w, lambda x, w: tall._product(x, w, None, True))
    expected = penalty(x.double(), w.double(), F.linear)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-4)


class TestChoice:
    def test_what_these_kernels_cannot_do_goes_to_torch(self):
        x, w = normal(2000, 30), normal(20, 30)
        y = tall.tall_linear(x.double(), w.double())
        torch.testing.assert_close(y.float(), x @ w.t())
        wide = tall.tall_linear(x.view(20, 100, 30), w)
        torch.testing.assert_close(wide, (x @ w.t()).view(20, 100, 20))

    @pytest.mark.parametrize("tune", ["on", "off"])
    def test_either_choice_gives_the_same(self, tune, monkeypatch):
        monkeypatch.setenv("GOSSAMER_TUNE", tune)
        x, w, b = normal(4000, 30), normal(20, 30), normal(20)
        torch.testing.assert_close(
            tall.tall_linear(x, w, b), F.linear(x, w, b), rtol=1e-5, atol=1e-5
        )

    def test_large_results_come_from_memory_that_is_used_again(self, monkeypatch):
        monkeypatch.setattr(tall, "_own_is_faster", lambda *product: False)
        gc.collect()
        drop_results()
        x, w = normal(70_000, 3), normal(20, 3).requires_grad_()
        y = tall.tall_linear(x, w)
        assert result_bytes()[0] == y.numel() * 4
        torch.testing.assert_close(y, F.linear(x, w), rtol=1e-5, atol=1e-5)
        small = tall.tall_linear(x[:30_000], w)
        assert result_bytes()[0] == y.numel() * 4
        torch.testing.assert_close(small, y[:30_000], rtol=1e-5, atol=1e-5)

    def test_a_rule_decides_where_nothing_may_be_measured(self, monkeypatch):
        def refuse(*product):
            raise AssertionError("measured")

        monkeypatch.setattr(tall, "_measured", refuse)
        x, w = normal(70_000, 31).requires_grad_(), normal(23, 31).requires_grad_()
        found = tall.tall_linear(x, w, measures=False)
        torch.testing.assert_close(found, F.linear(x, w), rtol=1e-5, atol=1e-4)
        found.sum().backward()
        monkeypatch.setenv("GOSSAMER_TUNE", "on")
        if active_kernels() != "reference":
            with pytest.raises(AssertionError, match="measured"):
                tall.tall_linear(x, w)
