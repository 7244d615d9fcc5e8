# SPDX-License-Identifier: Apache-2.0
"""Features that are mostly zeros and new in every step: squeezed, and equal to dense float64."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from graph_cases import dense_matrix, random_edges
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer.graph import GAT, GCN, GIN, SAGE, Graph
from gossamer.graph.layers import SGC
from gossamer.graph.orders import Squeezing, sparse_input
from gossamer.graph.orders.choice import ProductCosts
from gossamer.ops.kernels import available_kernels
from gossamer.ops.spmm import EdgeMatrix

NODES, WORDS, WIDTH = 300, 400, 16


def bags(seed=0, share=0.02):
    """Features with this share of numbers that are not 0."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(NODES, WORDS, generator=generator)
    return x * (torch.rand(NODES, WORDS, generator=generator) < share)


@pytest.fixture
def graph():
    return Graph.of(random_edges(NODES, 900), num_nodes=NODES)


class TestSqueezed:
    @pytest.mark.parametrize("kernels", available_kernels())
    @given(
        st.integers(0, 40), st.integers(0, 40), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 9)
    )
    @settings(max_examples=25, deadline=None)
    def test_rows_columns_and_values_are_those_that_are_not_zero(
        self, kernels, rows, width, share, seed
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GOSSAMER_KERNELS", kernels)
            generator = torch.Generator().manual_seed(seed)
            x = torch.randn(rows, width, generator=generator) - 0.0
            x = torch.where(torch.rand(rows, width, generator=generator) < share, x, -0.0)
            if x.numel():
                x[-1, -1] = float("nan")
            found = EdgeMatrix.squeezed(x)
        expected = (x != 0).nonzero()
        assert torch.equal(found.edges.by_target.row_of_edge, expected[:, 0])
        assert torch.equal(found.edges.by_target.columns.long(), expected[:, 1])
        assert torch.equal(found.values.nan_to_num(7.0), x[x != 0].nan_to_num(7.0))

    @pytest.mark.parametrize("most", [0.3, 0.9])
    def test_too_many_numbers_give_nothing(self, most):
        x = torch.ones(400, 4)
        assert EdgeMatrix.squeezed(x, most) is None
        assert EdgeMatrix.squeezed(x, 1.0) is not None


def mlp():
    return nn.Sequential(nn.Linear(WORDS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))


LAYERS = {
    "gcn": lambda: GCN(WORDS, WIDTH),
    "sage": lambda: SAGE(WORDS, WIDTH),
    "gin": lambda: GIN(mlp()),
    "gat": lambda: GAT(WORDS, 4, 4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_what_dense_features_give(name, graph):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    layer.measures = False  # the rule: 2 % are few
    for step in range(3):
        x = bags(step)
        results = []
        for features in (x, x.clone().requires_grad_()):  # the second one is never squeezed
            layer.zero_grad()
            y = layer(features, graph)
            y.square().sum().backward()
            results.append([y.detach(), *(p.grad.clone() for p in layer.parameters())])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gcn_equals_float64_and_says_what_it_does(graph):
    torch.manual_seed(0)
    layer, x = GCN(WORDS, WIDTH, loops=False, normalise=False), bags()
    layer.measures = False
    y = layer(x, graph)
    y.square().sum().backward()
    weight = layer.lin.weight.detach().double().requires_grad_()
    a = dense_matrix(random_edges(NODES, 900), NODES)
    expected = a @ F.linear(x.double(), weight)
    expected.square().sum().backward()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.lin.weight.grad.double(), weight.grad, rtol=1e-4, atol=1e-4)
    assert layer.choice.order == "sparse x"
    assert "in every step" in layer.choice.why


class TestSqueezing:
    weight = torch.ones(WIDTH, WORDS)

    def test_a_measurement_looks_at_dense_features_once(self, monkeypatch):
        looks = []
        real = EdgeMatrix.squeezed
        monkeypatch.setattr(EdgeMatrix, "squeezed", lambda *a: looks.append(a) or real(*a))
        squeezing = Squeezing()
        for _ in range(3):
            assert squeezing.matrix(bags(share=0.5), self.weight, measures=True) is None
        assert len(looks) == 1

    def test_features_that_learn_are_not_squeezed(self):
        x = bags().requires_grad_()
        assert Squeezing().matrix(x, self.weight, measures=False) is None

    def test_other_dtypes_are_not_squeezed(self):
        x = bags().double()
        assert Squeezing().matrix(x, self.weight.double(), measures=False) is None

    def test_a_rule_remembers_nothing(self):
        squeezing = Squeezing()
        for share, is_sparse in ((0.02, True), (0.9, False), (0.1, False), (0.02, True)):
            found = squeezing.matrix(bags(share=share), self.weight, measures=False)
            assert (found is not None) is is_sparse

    def test_a_measured_choice_is_one_of_both(self):
        squeezing = Squeezing()
        with torch.no_grad():
            found = squeezing.matrix(bags(), self.weight, measures=True)
        assert found is None or found.edges.num_edges == int((bags() != 0).sum())


WIDE = 300  # 400 features through the graph once are fewer than 300 twice
ORDERS = {
    "gcn": lambda: GCN(WORDS, WIDE),
    "sage": lambda: SAGE(WORDS, WIDE),
    "gin": lambda: GIN(nn.Sequential(nn.Linear(WORDS, WIDE), nn.ReLU(), nn.Linear(WIDE, 3))),
}


class TestWhereTheGraphAloneWouldComeFirst:
    """Products with the graph want (A X) W; a sparse X W is left for it only if it costs more."""

    def force(self, monkeypatch, per_feature, sparse, dense):
        """Times of a product with the graph, per feature, and of a step's products with W."""
        monkeypatch.setattr(ProductCosts, "of", lambda self, matrix, width: per_feature * width)
        forced = SimpleNamespace(us=(sparse, dense))
        monkeypatch.setattr(sparse_input, "contest", lambda *a, **k: forced)

    @pytest.mark.parametrize("edges", [900, 6000])  # the rule chooses, measured costs do
    @pytest.mark.parametrize(
        ("per_feature", "order"),
        [(0.5, "sparse x"), (4.4, "sparse x"), (4.6, "propagate first"), (50.0, "propagate first")],
    )
    @pytest.mark.parametrize("name", ORDERS)
    def test_the_smaller_sum_is_chosen(self, name, per_feature, order, edges, monkeypatch):
        # 600 - 400 features more through the graph, against 1000 - 100 us less for W.
        self.force(monkeypatch, per_feature, sparse=100.0, dense=1000.0)
        monkeypatch.setenv("GOSSAMER_TUNE", "on")
        layer, graph = ORDERS[name](), Graph.of(random_edges(NODES, edges), num_nodes=NODES)
        layer.keeps = False
        for step in range(3):
            layer(bags(step), graph)
            assert layer.choice.order == order

    @pytest.mark.parametrize(("hops", "order"), [(1, "sparse x"), (3, "propagate first")])
    def test_every_hop_counts(self, hops, order, monkeypatch):
        self.force(monkeypatch, 2.0, sparse=100.0, dense=1000.0)
        monkeypatch.setenv("GOSSAMER_TUNE", "on")
        layer, graph = SGC(WORDS, WIDE, hops), Graph.of(random_edges(NODES, 900), num_nodes=NODES)
        layer(bags(), graph)
        assert layer.choice.order == order

    @pytest.mark.parametrize(("edges", "order"), [(900, "sparse x"), (30_000, "propagate first")])
    @pytest.mark.parametrize("name", ORDERS)
    def test_the_rule_counts_the_graph_too(self, name, edges, order):
        layer, graph = ORDERS[name](), Graph.of(random_edges(NODES, edges), num_nodes=NODES)
        layer.keeps, layer.measures = False, False
        layer(bags(), graph)
        assert layer.choice.order == order

    def test_a_decision_is_made_once_for_each_product_of_a_layer(self, monkeypatch):
        self.force(monkeypatch, 50.0, sparse=100.0, dense=1000.0)
        monkeypatch.setenv("GOSSAMER_TUNE", "on")
        forced, asked = sparse_input.contest(), []
        monkeypatch.setattr(sparse_input, "contest", lambda *a, **k: asked.append(a) or forced)
        layer, graph = SAGE(WORDS, WIDE), Graph.of(random_edges(NODES, 900), num_nodes=NODES)
        for step in range(3):
            layer(bags(step), graph)
        assert len(asked) == 2  # W_l after the graph, W_r without it

    @pytest.mark.parametrize("name", ORDERS)
    def test_both_give_the_same(self, name, graph):
        torch.manual_seed(0)
        layer, x, results = ORDERS[name](), bags(), {}
        layer.measures = False
        for features in (x, x.clone().requires_grad_()):  # the second one is never squeezed
            layer.zero_grad()
            y = layer(features, graph)
            y.square().sum().backward()
            results[layer.choice.order] = [y.detach(), *(p.grad for p in layer.parameters())]
        assert set(results) == {"sparse x", "transform first"}
        for ours, theirs in zip(*results.values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
