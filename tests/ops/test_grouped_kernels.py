"""Native products of experts on every instruction set, against float64."""

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode

from gossamer.ops.experts import grouped_linear, native_products
from gossamer.ops.experts.gradients import new_gradient
from gossamer.ops.kernels import available_kernels

COUNTS = [(0, 0, 0), (1,), (0, 1, 0), (5, 0, 3), (2, 7, 16, 1), (33, 4, 0, 70)]
SHAPES = [(1, 1), (3, 5), (8, 16), (9, 17), (200, 64), (64, 70), (7, 700), (385, 1300)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def near(found, expected, terms):
    # Sums of so many terms, each rounded: in the order of vectors, a few roundings of sum |w||x|.
    wanted, bound = expected
    return bool(((found.double() - wanted).abs() <= 2.0**-24 * (terms + 4) * bound + 1e-30).all())


def products(x, w, counts, turned):
    """What is wanted in float64, and the same of absolute values."""
    w = w.double().view(len(counts), -1, w.shape[1])
    results = [[], []]
    for part, own in zip(x.double().split(list(counts)), w, strict=True):
        own = own.t() if turned else own
        results[0].append(part @ own)
        results[1].append(part.abs() @ own.abs())
    return tuple(torch.cat(r) for r in results)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(("outputs", "inner"), SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_both_products(kernels, counts, outputs, inner, threads):
    x, g = random(sum(counts), inner, seed=1), random(sum(counts), outputs, seed=2)
    w, bias = random(len(counts) * outputs, inner), random(len(counts) * outputs, seed=3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = native_products.product(x, w, bias, counts)
        dx = native_products.input_gradient(g, w, counts)
    finally:
        torch.set_num_threads(before)
    biases = [b.expand(n, -1) for b, n in zip(bias.chunk(len(counts)), counts, strict=True)]
    wanted, bound = products(x, w, counts, turned=True)
    added = torch.cat(biases).double()
    assert near(y, (wanted + added, bound + added.abs()), inner)
    assert near(dx, products(g, w, counts, turned=False), outputs)


def test_threads_give_the_same_bits(kernels):
    counts = (20, 0, 3, 31, 1)
    x, w = random(55, 96, seed=1), random(5 * 200, 96)
    g, found = random(55, 200, seed=2), []
    before = torch.get_num_threads()
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        y = native_products.product(x, w, None, counts)
        found.append((y, native_products.input_gradient(g, w, counts)))
    torch.set_num_threads(before)
    assert all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def test_a_weight_in_bfloat16_is_widened_exactly_and_the_result_rounded_once(kernels):
    counts = (9, 0, 2)
    x, w = random(11, 70, seed=1).bfloat16(), random(3 * 200, 70).bfloat16()
    y = native_products.product(x, w, None, counts)
    wide = native_products.product(x.float(), w.float(), None, counts)
    assert torch.equal(y, wide.bfloat16())
    dx = native_products.input_gradient(y, w, counts)
    assert torch.equal(dx, native_products.input_gradient(y.float(), w.float(), counts).bfloat16())


def test_nan_stays_with_its_token(kernels):
    x, w = random(6, 40, seed=1), random(2 * 24, 40)
    x[4, 3] = float("nan")
    y = native_products.product(x, w, None, (3, 3))
    assert y[4].isnan().all()
    assert not y[[0, 1, 2, 3, 5]].isnan().any()


@pytest.mark.parametrize("counts", [(3, 0, 2, 0), (4, 4, 4, 4), (0, 0, 60, 200)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_grouped_linear(counts, dtype):
    total, outputs, inner = sum(counts), 96, 80
    x, w = random(total, inner, seed=1), random(4 * outputs, inner)
    bias, seed = random(4 * outputs, seed=3), random(total, outputs, seed=4)
    own = [t.to(dtype).requires_grad_() for t in (x, w, bias)]
    y = grouped_linear(*own, counts)
    y.backward(seed.to(dtype))
    exact = [t.detach().double().requires_grad_() for t in own]
    parts = zip(exact[0].split(list(counts)), exact[1].chunk(4), exact[2].chunk(4), strict=True)
    wanted = torch.cat([torch.nn.functional.linear(*part) for part in parts])
    wanted.backward(seed.to(dtype).double())
    limit = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for found, expected in [
        (y.detach(), wanted.detach()),
        *((a.grad, b.grad) for a, b in zip(own, exact, strict=True)),
    ]:
        assert float((found.double() - expected).abs().max() / expected.abs().max()) < limit
    idle = [e for e, n in enumerate(counts) if not n]
    assert not own[1].grad.view(4, outputs, inner)[idle].any()


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(("outputs", "inner"), [*SHAPES, (0, 5), (5, 0)])
@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_of_weights(kernels, counts, outputs, inner, threads):
    x, g = random(sum(counts), inner, seed=1), random(sum(counts), outputs, seed=2)
    dw = torch.full((len(counts) * outputs, inner), 7.0)
    sums, before = torch.full((len(dw),), 7.0), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        native_products.weight_gradient(g, x, dw, sums, counts)
    finally:
        torch.set_num_threads(before)
    parts = zip(g.double().split(list(counts)), x.double().split(list(counts)), strict=True)
    for (own_g, own_x), found, added in zip(
        parts, dw.chunk(len(counts)), sums.chunk(len(counts)), strict=True
    ):
        if not len(own_g):  # not touched
            assert bool((found == 7).all())
            assert bool((added == 7).all())
            continue
        assert near(found, (own_g.t() @ own_x, own_g.abs().t() @ own_x.abs()), len(own_g))
        assert near(added, (own_g.sum(0), own_g.abs().sum(0)), len(own_g))


@pytest.mark.parametrize("tokens", [1, 2, 4, 40])
def test_a_large_gradient_that_passes_the_caches(kernels, tokens):
    counts = (tokens, tokens)
    x, g = random(2 * tokens, 1536, seed=1), random(2 * tokens, 1500, seed=2)
    w = torch.zeros(3000, 1536)
    dw = new_gradient(w, counts)
    native_products.weight_gradient(g, x, dw, None, counts)
    exact = [a.double().t() @ b.double() for a, b in zip(g.chunk(2), x.chunk(2), strict=True)]
    bound = [a.abs().t() @ b.abs() for a, b in zip(g.chunk(2), x.chunk(2), strict=True)]
    assert near(dw, (torch.cat(exact), torch.cat(bound).double() * 1.0001), tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [0, 3, 3000])
@pytest.mark.parametrize("counts", [(0,), (0, 1, 0), (1, 0, 0, 0, 1, 1)], ids=str)
def test_gradients_of_idle_experts_are_zero_in_memory_that_was_used(dtype, rows, counts):
    weight = torch.ones(len(counts) * rows, 700, dtype=dtype)
    used = new_gradient(weight, [1] * len(counts)).fill_(3)
    del used
    made = new_gradient(weight, counts)
    assert made.dtype == dtype
    assert made.shape == weight.shape
    assert made.is_contiguous()
    for count, part in zip(counts, made.chunk(len(counts)), strict=True):
        if not count:
            assert not part.any()
            part.add_(1)
            assert float(part.double().sum()) == rows * 700


@pytest.mark.parametrize("counts", [(3, 0), (2, 1)], ids=str)
def test_a_large_gradient_that_is_traced_has_no_memory(counts):
    with FakeTensorMode():
        x, w = torch.empty(3, 1500, requires_grad=True), torch.empty(2000, 1500, requires_grad=True)
        grouped_linear(x, w, None, counts).sum().backward()
    assert isinstance(w.grad, FakeTensor)
    assert w.grad.shape == w.shape


def test_what_is_left_to_torch(monkeypatch):
    w, is_faster = random(2 * 8, 16), native_products.is_faster
    assert not is_faster(random(0, 16), w, (0, 0))
    assert not is_faster(random(4, 16).double(), w.double(), (2, 2))
    assert not is_faster(random(16, 4).t(), w, (2, 2))
    monkeypatch.setattr(native_products, "active_kernels", lambda: "avx512")
    monkeypatch.setattr(native_products, "cpu_name", lambda: "Intel Xeon")
    assert is_faster(random(40, 16), w, (20, 20))
    assert not is_faster(random(200, 16), w, (100, 100))
    monkeypatch.setattr(native_products, "cpu_name", lambda: "AMD EPYC")
    assert is_faster(random(200, 16), w, (100, 100))
    monkeypatch.setattr(native_products, "active_kernels", lambda: "reference")
    assert not is_faster(random(4, 16), w, (2, 2))
