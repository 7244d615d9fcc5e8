# SPDX-License-Identifier: Apache-2.0
"""Products with edges: every kernel set against float64, gradients included, any thread count."""

import pytest
import torch

from gossamer.errors import InputError
from gossamer.ops.kernels import available_kernels
from gossamer.ops.spmm import EdgeMatrix, EdgeRows, Edges, attention, pair_logits, spmm, spmm_max

# sources, targets, edges, rows in another order
GRAPHS = [(0, 0, 0, False), (3, 4, 0, False), (1, 1, 5, False), (7, 5, 20, False), (30, 30, 200, 1)]
# features, heads
WIDTHS = [(1, 1), (3, 1), (16, 1), (40, 1), (64, 8), (130, 1), (56, 7), (24, 24), (300, 3)]


def edges_of(num_sources, num_targets, count, reordered=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda most: torch.randint(0, max(most, 1), (count,), generator=generator)  # noqa: E731
    order = torch.randperm(num_targets, generator=generator).int() if reordered else None
    return Edges(
        *EdgeRows.of(draw(num_sources), draw(num_targets), num_sources, num_targets, order)
    )


def results(function, leaves, dtype):
    """y and the gradients of all leaves, computed in a dtype."""
    inputs = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    y = function(*inputs)
    weight = torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)
    grads = torch.autograd.grad((y * weight).sum(), inputs, allow_unused=True)
    return [y.detach(), *(g for g in grads if g is not None)]


def assert_same(function, leaves, rtol=2e-5):
    found, expected = (results(function, leaves, d) for d in (torch.float32, torch.float64))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        scale = 1.0 + (float(b.abs().max()) if b.numel() else 0.0)
        torch.testing.assert_close(a.double() / scale, b / scale, rtol=0, atol=rtol)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture(params=available_kernels())
def _kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("_kernels")
class TestAgainstFloat64:
    def test_sum_with_ones_fixed_and_learned_weights(self, graph, width):
        edges, (features, heads) = edges_of(*graph), width
        x, bias = normal(graph[0], features), normal(features)
        shape = (edges.num_edges, heads) if heads > 1 else (edges.num_edges,)
        ones, fixed = EdgeMatrix(edges), EdgeMatrix(edges, normal(edges.num_edges))
        assert_same(lambda x, b: spmm(x, ones, bias=b), [x, bias])
        assert_same(lambda x: spmm(x, fixed), [x])
        assert_same(lambda x, v: spmm(x, ones, v), [x, normal(*shape)])
        back = normal(graph[1], features)
        assert_same(lambda x, v: spmm(x, ones, v, transposed=True), [back, normal(*shape)])

    def test_maximum_shares_its_gradient_among_ties(self, graph, width):
        matrix = EdgeMatrix(edges_of(*graph))
        x = normal(graph[0], width[0]).mul(2).round()
        assert_same(lambda x: spmm_max(x, matrix), [x])

    def test_attention(self, graph, width):
        matrix, (features, heads) = EdgeMatrix(edges_of(*graph)), width
        x, edges = normal(graph[0], features), matrix.edges.num_edges
        leaves = [x, normal(graph[1], heads), normal(graph[0], heads)]
        keep = (normal(edges, heads) > 0).float() * 2

        def plain(x, target, source):
            return attention(x, matrix, target=target, source=source)

        def dropped(x, target, source):
            return attention(x, matrix, target=target, source=source, keep=keep.to(x.dtype))

        assert_same(plain, leaves)
        assert_same(dropped, leaves)

    def test_attention_of_pairs(self, graph, width):
        matrix, (features, heads) = EdgeMatrix(edges_of(*graph)), width
        leaves = [normal(graph[0], features), normal(graph[1], features)]
        # Small weights: the exponential of a sum of 300 products would enlarge every rounding.
        leaves.append(normal(heads, features // heads) / (features // heads) ** 0.5)

        def paired(source, target, att):
            return attention(source, matrix, logits=pair_logits(source, target, att, matrix))

        assert_same(paired, leaves, rtol=5e-5)


def half(t):
    """The nearest bfloat16, as float64."""
    return t.bfloat16().double()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.usefixtures("_kernels")
class TestBfloat16:
    """Sums of bfloat16 are rounded once: half a unit of their last place, and float32's error."""

    def expect(self, found, exact, sizes):
        assert found.dtype is torch.bfloat16
        limit = exact.abs() / 256 + 1e-5 * (sizes + 1)
        assert bool(((found.double() - exact).abs() <= limit).all())

    def test_sum_and_its_gradients(self, graph, width):
        edges, features = edges_of(*graph), width[0]
        x, grad = normal(graph[0], features), normal(graph[1], features)
        bias, values = normal(features), normal(edges.num_edges)
        matrix = EdgeMatrix(edges, values)
        targets, sources = edges.endpoints
        a = torch.zeros(graph[1], graph[0], dtype=torch.float64)
        a.index_put_((targets, sources), values.double(), accumulate=True)
        leaves = [t.bfloat16().requires_grad_() for t in (x, bias)]
        y = spmm(leaves[0], matrix, bias=leaves[1])
        y.backward(grad.bfloat16())
        self.expect(y, a @ half(x) + half(bias), a.abs() @ half(x).abs() + half(bias).abs())
        self.expect(leaves[0].grad, a.t() @ half(grad), a.abs().t() @ half(grad).abs())
        self.expect(leaves[1].grad, half(grad).sum(0), half(grad).abs().sum(0))

    def test_weights_that_learn_maxima_and_attention_are_those_of_float32(self, graph, width):
        matrix, (features, heads) = EdgeMatrix(edges_of(*graph)), width
        edges = matrix.edges.num_edges
        x = normal(graph[0], features).bfloat16()
        shape = (edges, heads) if heads > 1 else (edges,)
        values, target, source = (normal(*s) for s in (shape, (graph[1], heads), (graph[0], heads)))

        def parts(x):
            return [
                spmm(x, matrix, values),
                spmm_max(x, matrix),
                attention(
                    x,
                    matrix,
                    target=target.bfloat16().to(x.dtype),
                    source=source.bfloat16().to(x.dtype),
                ),
            ]

        for found, exact in zip(parts(x), parts(x.float()), strict=True):
            assert found.dtype is torch.bfloat16
            torch.testing.assert_close(found.float(), exact, rtol=1 / 128, atol=1e-2)


@pytest.mark.parametrize("kernels", available_kernels())
def test_one_and_two_threads_give_the_same_bits(kernels, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    edges = edges_of(300, 200, 4000)
    matrix = EdgeMatrix(edges, normal(4000))
    x, target, source = normal(300, 48), normal(200, 4), normal(300, 4)

    def run():
        leaves = [t.clone().requires_grad_() for t in (x, target, source)]
        own = spmm_max(leaves[0], matrix)
        y = attention(leaves[0], matrix, target=leaves[1], source=leaves[2])
        logits = pair_logits(leaves[0], own, leaves[1][:4, :4].repeat(1, 3), matrix)
        loss = (spmm(leaves[0], matrix) + y + own).sum() + logits.square().sum()
        return [y, own, logits, *torch.autograd.grad(loss, leaves)]

    threads, outcomes = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        outcomes.append(run())
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_second_derivatives_of_a_weighted_sum():
    matrix = EdgeMatrix(edges_of(6, 5, 20))
    x, values = normal(6, 3), normal(20)

    def norm_of_gradient(x, v):
        (dx,) = torch.autograd.grad(spmm(x, matrix, v).pow(3).sum(), x, create_graph=True)
        return dx

    assert_same(norm_of_gradient, [x, values])


def test_the_ops_are_what_torch_expects_of_ops():
    matrix = EdgeMatrix(edges_of(6, 5, 20), normal(20))
    x = normal(6, 4).requires_grad_()
    settings = matrix.number, False, 1, 5
    torch.library.opcheck(torch.ops.gossamer.spmm.default, (x, None, None, *settings))
    torch.library.opcheck(torch.ops.gossamer.spmm_max.default, (x, matrix.number, 5))


def test_maximum_of_nan_is_nan():
    matrix = EdgeMatrix(Edges(*EdgeRows.of(torch.tensor([0, 1]), torch.tensor([0, 0]), 2, 1)))
    for rows in ([[float("nan")], [1.0]], [[1.0], [float("nan")]]):
        assert spmm_max(torch.tensor(rows), matrix).isnan().all()


def test_wrong_shapes_are_told():
    matrix = EdgeMatrix(edges_of(6, 5, 20))
    with pytest.raises(InputError, match=r"expected features \[6, F\].*got \[5, 4\]"):
        spmm(normal(5, 4), matrix)
    with pytest.raises(InputError, match="weights of 20 edges"):
        spmm(normal(6, 4), matrix, normal(19))
    with pytest.raises(InputError, match="cannot be shared by 3 heads"):
        spmm(normal(6, 4), matrix, normal(20, 3))
    with pytest.raises(InputError, match="heads over 4 features"):
        attention(normal(6, 4), matrix, logits=normal(20, 3))
    with pytest.raises(InputError, match="target and source, or logits"):
        attention(normal(6, 4), matrix)
