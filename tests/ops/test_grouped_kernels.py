"""Native products of experts on every instruction set, against float64."""

import pytest
import torch

from gossamer.ops.experts import few_tokens, grouped_linear
from gossamer.ops.experts.idle_memory import zeros_like
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
        y = few_tokens.product(x, w, bias, counts)
        dx = few_tokens.input_gradient(g, w, counts)
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
        found.append(
            (few_tokens.product(x, w, None, counts), few_tokens.input_gradient(g, w, counts))
        )
    torch.set_num_threads(before)
    assert all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def test_a_weight_in_bfloat16_is_widened_exactly_and_the_result_rounded_once(kernels):
    counts = (9, 0, 2)
    x, w = random(11, 70, seed=1).bfloat16(), random(3 * 200, 70).bfloat16()
    y = few_tokens.product(x, w, None, counts)
    wide = few_tokens.product(x.float(), w.float(), None, counts)
    assert torch.equal(y, wide.bfloat16())
    dx = few_tokens.input_gradient(y, w, counts)
    assert torch.equal(dx, few_tokens.input_gradient(y.float(), w.float(), counts).bfloat16())


def test_nan_stays_with_its_token(kernels):
    x, w = random(6, 40, seed=1), random(2 * 24, 40)
    x[4, 3] = float("nan")
    y = few_tokens.product(x, w, None, (3, 3))
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [0, 3, 3000])
def test_zeros_that_are_mapped_are_an_ordinary_tensor(dtype, rows):
    made = zeros_like(torch.ones(rows, 700, dtype=dtype))
    assert made.dtype == dtype
    assert made.shape == (rows, 700)
    assert made.is_contiguous()
    assert not made.any()
    made.add_(1)
    assert float(made.double().sum()) == rows * 700


def test_more_tokens_and_other_types_are_left_to_torch(monkeypatch):
    w = random(2 * 8, 16)
    assert not few_tokens.is_faster(random(0, 16), w, (0, 0))
    assert not few_tokens.is_faster(random(4, 16).double(), w.double(), (2, 2))
    assert not few_tokens.is_faster(random(200, 16), w, (100, 100))
    assert not few_tokens.is_faster(random(16, 4).t(), w, (2, 2))
    monkeypatch.setenv("GOSSAMER_KERNELS", "reference")
    assert not few_tokens.is_faster(random(4, 16), w, (2, 2))
