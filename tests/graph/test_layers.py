# SPDX-License-Identifier: Apache-2.0
"""Layers in every order against float64 on dense matrices; what they keep is never stale."""

import copy

import pytest
import torch
import torch.nn.functional as F
from graph_cases import dense_matrix, edge_lists, random_edges
from hypothesis import given, settings
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.graph import GAT, GCN, GIN, SAGE, Graph, explain
from gossamer.graph.layers import APPNP, SGC, GATv2, LightGCN
from gossamer.graph.orders import OrderChoice

NODES, EDGES = 40, 240


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def gcn_matrix(edges, nodes, weight=None, loops=True):
    """D^-1/2 A D^-1/2 in float64; loops are filled in where there are none."""
    weight = torch.ones(edges.shape[1]).double() if weight is None else weight.double()
    if loops:
        is_loop = edges[0] == edges[1]
        own = torch.ones(nodes).double().index_copy(0, edges[0, is_loop], weight[is_loop])
        nodes_twice = torch.arange(nodes).expand(2, -1)
        weight = torch.cat([weight[~is_loop], own])
        edges = torch.cat([edges[:, ~is_loop], nodes_twice], dim=1)
    a = dense_matrix(edges, nodes, weight)
    degrees = a.sum(1)
    roots = torch.where(degrees > 0, degrees, 1.0).rsqrt() * (degrees > 0)
    return roots[:, None] * a * roots[None, :]


def mean_matrix(edges, nodes):
    a = dense_matrix(edges, nodes)
    return a / a.sum(1, keepdim=True).clamp_min(1)


def attention_of(h, logits, edges, nodes):
    """Softmax over the edges of each target, edge by edge in float64; h [N, H, C]."""
    out = []
    for target in range(nodes):
        at = (edges[1] == target).nonzero().flatten()
        weights = logits[at].softmax(0)
        out.append((weights[:, :, None] * h[edges[0, at]]).sum(0))
    return torch.stack(out)


def with_loops(edges, nodes):
    others = edges[:, edges[0] != edges[1]]
    return torch.cat([others, torch.arange(nodes).expand(2, -1)], dim=1)


def dense_gat(layer, x, edges, nodes):
    edges = with_loops(edges, nodes)
    h = F.linear(x, layer.lin.weight).view(nodes, layer.heads, -1)
    sums = (h * layer.att_src).sum(-1)[edges[0]] + (h * layer.att_dst).sum(-1)[edges[1]]
    y = attention_of(h, F.leaky_relu(sums, 0.2), edges, nodes)
    return (y.flatten(1) if layer.concat else y.mean(1)) + layer.bias


def dense_gatv2(layer, x, edges, nodes):
    edges = with_loops(edges, nodes)
    left = layer.lin_l(x).view(nodes, layer.heads, -1)
    right = layer.lin_r(x).view(nodes, layer.heads, -1)
    pairs = F.leaky_relu(left[edges[0]] + right[edges[1]], 0.2)
    y = attention_of(left, (pairs * layer.att).sum(-1), edges, nodes)
    return (y.flatten(1) if layer.concat else y.mean(1)) + layer.bias


def dense_appnp(x, a):
    z = x
    for _ in range(3):
        z = 0.9 * (a @ z) + 0.1 * x
    return z


def dense_max(x, edges, nodes):
    rows = [x[edges[0, edges[1] == n]] for n in range(nodes)]
    return torch.stack([r.amax(0) if len(r) else x.new_zeros(x.shape[1]) for r in rows])


# name -> (layer of (inputs, outputs), the same in float64 from (layer, x, edges, nodes))
LAYERS = {
    "gcn": (
        GCN,
        lambda m, x, e, n: gcn_matrix(e, n) @ F.linear(x, m.lin.weight) + m.bias,
    ),
    "sage mean": (
        SAGE,
        lambda m, x, e, n: m.lin_l(mean_matrix(e, n) @ x) + m.lin_r(x),
    ),
    "sage max": (
        lambda a, b: SAGE(a, b, aggregate="max"),
        lambda m, x, e, n: m.lin_l(dense_max(x, e, n)) + m.lin_r(x),
    ),
    "gin": (
        lambda a, b: GIN(mlp(a, b), eps=0.3, train_eps=True),
        lambda m, x, e, n: m.nn(dense_matrix(e, n) @ x + (1 + m.eps) * x),
    ),
    "gat": (lambda a, b: GAT(a, b, 4), dense_gat),
    "gat mean": (lambda a, b: GAT(a, b, 3, concat=False), dense_gat),
    "gatv2": (lambda a, b: GATv2(a, b, 4), dense_gatv2),
    "sgc": (
        lambda a, b: SGC(a, b, 2),
        lambda m, x, e, n: m.lin(gcn_matrix(e, n) @ (gcn_matrix(e, n) @ x)),
    ),
    "appnp": (lambda a, b: APPNP(3, 0.1), lambda m, x, e, n: dense_appnp(x, gcn_matrix(e, n))),
    "lightgcn": (
        lambda a, b: LightGCN(2),
        lambda m, x, e, n: (x + (a := gcn_matrix(e, n, loops=False)) @ x + a @ (a @ x)) / 3,
    ),
}


def outcome(function, layer, x, needs_dx=True):
    """y and gradients of x and all parameters."""
    layer.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_() if needs_dx else x
    y = function(x)
    if y.requires_grad:
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    grads = {name: p.grad for name, p in layer.named_parameters()}
    return {"y": y.detach(), "x": x.grad if needs_dx else None, **grads}


def assert_close(found, expected):
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
            continue
        scale = 1 + (float(value.abs().max()) if value.numel() else 0)
        torch.testing.assert_close(
            found[name].double() / scale, value.double() / scale, rtol=0, atol=1e-5, msg=name
        )


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("needs_dx", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(5, 12), (24, 3), (16, 16)])
def test_layer_equals_float64(name, needs_dx, inputs, outputs, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    make, dense = LAYERS[name]
    torch.manual_seed(0)
    layer, edges = make(inputs, outputs), random_edges(NODES, EDGES)
    graph, x = Graph.of(edges, num_nodes=NODES), torch.randn(NODES, inputs)
    exact = copy.deepcopy(layer).double()
    expected = outcome(lambda x: dense(exact, x, edges, NODES), exact, x.double(), needs_dx)
    for _ in range(3):  # the same features again: what is kept must give the same
        assert_close(outcome(lambda x: layer(x, graph), layer, x, needs_dx), expected)
    assert layer.choice is not None


@pytest.mark.parametrize("order", ["transform first", "propagate first"])
@pytest.mark.parametrize("name", ["gcn", "sage mean", "gin", "sgc"])
def test_both_orders_give_the_same(name, order, monkeypatch):
    make, dense = LAYERS[name]
    torch.manual_seed(0)
    layer, edges = make(7, 9), random_edges(NODES, EDGES)
    for module in ("gossamer.graph.layer", "gossamer.graph.layers.neighbours"):
        monkeypatch.setattr(f"{module}.choose", lambda *a, **k: OrderChoice(order, "asked for"))
    exact, x = copy.deepcopy(layer).double(), torch.randn(NODES, 7)
    found = outcome(lambda x: layer(x, Graph.of(edges, num_nodes=NODES)), layer, x)
    assert layer.choice.order == order
    assert_close(found, outcome(lambda x: dense(exact, x, edges, NODES), exact, x.double()))


@settings(deadline=None, max_examples=40)
@given(edge_lists())
def test_layers_equal_float64_on_any_graph(case):
    nodes, edges = case
    torch.manual_seed(0)
    for name in ("gcn", "sage mean", "sage max", "gin", "gat", "gatv2"):
        make, dense = LAYERS[name]
        layer, x = make(3, 4), torch.randn(nodes, 3)
        found = outcome(lambda x, m=layer: m(x, Graph.of(edges, num_nodes=nodes)), layer, x)
        if nodes == 0:
            assert found["y"].shape[0] == 0
            continue
        exact = copy.deepcopy(layer).double()
        run = lambda x, m=exact, d=dense: d(m, x, edges, nodes)  # noqa: E731
        assert_close(found, outcome(run, exact, x.double()))


@pytest.mark.parametrize("order", ["given", "degree", "rcm", "auto"])
def test_the_order_of_visits_changes_nothing(order):
    torch.manual_seed(0)
    edges, x = random_edges(NODES, EDGES), torch.randn(NODES, 6)
    weight = torch.rand(EDGES)
    graph = Graph.of(edges, weight, num_nodes=NODES, order=order)
    plain = Graph.of(edges, weight, num_nodes=NODES)
    for name in ("gcn", "sage mean", "gat", "gatv2", "sage max"):
        layer = LAYERS[name][0](6, 4)
        expected = outcome(lambda x, m=layer: m(x, plain), layer, x)
        assert_close(outcome(lambda x, m=layer: m(x, graph), layer, x), expected)


def test_weights_of_edges_learn():
    edges, x = random_edges(NODES, EDGES), torch.randn(NODES, 6)
    weight = torch.rand(EDGES) + 0.1
    layer = GCN(6, 4)
    exact = copy.deepcopy(layer).double()
    found, expected = weight.clone().requires_grad_(), weight.double().requires_grad_()
    graph = Graph.of(edges, found, num_nodes=NODES)
    for _ in range(2):  # a second pass needs a new autograd graph
        found.grad = None
        layer(x, graph).square().sum().backward()
    a = gcn_matrix(edges, NODES, expected)
    (a @ exact.lin(x.double()) + exact.bias).square().sum().backward()
    torch.testing.assert_close(found.grad.double(), expected.grad, rtol=1e-4, atol=1e-5)


class TestWhatIsKept:
    def layer_and_graph(self, monkeypatch):
        monkeypatch.setenv("GOSSAMER_TUNE", "off")
        torch.manual_seed(0)
        return GCN(6, 4), Graph.of(random_edges(NODES, EDGES), num_nodes=NODES)

    def fresh(self, layer, x, graph):
        other = copy.deepcopy(layer)
        other.keeps = False
        return other(x.clone(), graph)

    def test_features_changed_in_place_are_seen(self, monkeypatch):
        layer, graph = self.layer_and_graph(monkeypatch)
        x = torch.randn(NODES, 6)
        for _ in range(3):
            layer(x, graph)
        assert layer.choice.order == "A x kept"
        x.mul_(2)
        torch.testing.assert_close(layer(x, graph), self.fresh(layer, x, graph))
        with torch.no_grad():
            x[0, 0] = 100.0
        torch.testing.assert_close(layer(x, graph), self.fresh(layer, x, graph))

    def test_another_graph_or_tensor_is_seen(self, monkeypatch):
        layer, graph = self.layer_and_graph(monkeypatch)
        x = torch.randn(NODES, 6)
        for _ in range(3):
            layer(x, graph)
        other = Graph.of(random_edges(NODES, EDGES, seed=1), num_nodes=NODES)
        torch.testing.assert_close(layer(x, other), self.fresh(layer, x, other))
        twin = torch.randn(NODES, 6)
        torch.testing.assert_close(layer(twin, graph), self.fresh(layer, twin, graph))

    def test_a_tensor_at_the_address_of_one_that_is_gone(self, monkeypatch):
        layer, graph = self.layer_and_graph(monkeypatch)
        for seed in range(20):
            torch.manual_seed(seed)
            x = torch.randn(NODES, 6)
            layer(x, graph)
            torch.testing.assert_close(layer(x, graph), self.fresh(layer, x, graph))
            del x

    def test_edited_edges_are_seen(self, monkeypatch):
        layer, _ = self.layer_and_graph(monkeypatch)
        x, edges = torch.randn(NODES, 6), random_edges(NODES, EDGES)
        for _ in range(3):
            layer(x, edges)
        edges[0, :50] = 3
        torch.testing.assert_close(
            layer(x, edges), self.fresh(layer, x, Graph.of(edges, num_nodes=NODES))
        )

    def test_edited_weights_of_edges_are_seen(self, monkeypatch):
        layer, _ = self.layer_and_graph(monkeypatch)
        x, edges, weight = torch.randn(NODES, 6), random_edges(NODES, EDGES), torch.rand(EDGES)
        for _ in range(3):
            layer(x, edges, weight)
        weight[:100] = 0.5
        graph = Graph.of(edges, weight, num_nodes=NODES)
        torch.testing.assert_close(layer(x, edges, weight), self.fresh(layer, x, graph))

    def test_dropout_on_features_forbids_it(self, monkeypatch):
        layer, graph = self.layer_and_graph(monkeypatch)
        x = torch.randn(NODES, 6)
        for _ in range(3):
            layer(F.dropout(x, 0.5), graph)
        assert layer.choice.order in ("propagate first", "transform first")

    def test_sparse_features_are_found_and_followed(self, monkeypatch):
        layer, graph = self.layer_and_graph(monkeypatch)
        x = torch.zeros(NODES, 200)
        x[torch.arange(NODES), torch.arange(NODES) * 3] = 2.0
        layer = GCN(200, 4)
        for _ in range(3):
            y = layer(x, graph)
        assert layer.choice.order == "sparse x"
        torch.testing.assert_close(y, self.fresh(layer, x, graph))
        x[5, 7] = 9.0
        torch.testing.assert_close(layer(x, graph), self.fresh(layer, x, graph))

    @pytest.mark.filterwarnings("ignore:Sparse")
    @pytest.mark.parametrize("width", [4, 64])  # narrower and wider than they are
    @pytest.mark.parametrize("make", [GCN, SAGE, GAT, lambda a, b: GIN(mlp(a, b))])
    def test_sparse_tensors_are_features(self, make, width):
        torch.manual_seed(0)
        graph = Graph.of(random_edges(NODES, EDGES), num_nodes=NODES)
        dense = torch.randn(NODES, 30).relu().mul(torch.rand(NODES, 30) < 0.1)
        layer, sparse = make(30, width), dense.to_sparse_csr()
        expected = outcome(lambda x: layer(x, graph), layer, dense, needs_dx=False)
        for _ in range(3):
            found = outcome(lambda x: layer(x, graph), layer, sparse, needs_dx=False)
            assert_close(found, expected)


def test_explain_says_what_each_layer_did():
    model = nn.ModuleList([GCN(6, 4), SAGE(4, 3, aggregate="max"), GAT(3, 2)])
    assert [row.order for row in explain(model)] == ["not run yet"] * 3
    x, graph = torch.randn(NODES, 6), Graph.of(random_edges(NODES, EDGES), num_nodes=NODES)
    for layer in model:
        x = layer(x, graph)
    text = str(explain(model))
    assert "a maximum is not linear" in text
    assert "0 GCN" in text


def test_pruned_layers_inside_a_graph_layer_work():
    torch.manual_seed(0)
    edges, x = random_edges(NODES, EDGES), torch.randn(NODES, 16)
    model = nn.ModuleList([GCN(16, 8), SAGE(8, 4)])

    def run(model):
        return model[1](model[0](x, graph).relu(), graph)

    graph = Graph.of(edges, num_nodes=NODES)
    gossamer.sparsify(model, sparsity=0.5)
    masked = run(model)
    gossamer.compact(model)
    torch.testing.assert_close(run(model), masked, rtol=1e-4, atol=1e-5)


def test_wrong_settings_are_told():
    with pytest.raises(InputError, match="unknown aggregate 'median'"):
        SAGE(3, 3, aggregate="median")
    with pytest.raises(InputError, match=r"40 sources.*41"):
        GCN(3, 3)(torch.randn(41, 3), Graph.of(random_edges(NODES, EDGES), num_nodes=NODES))
    with pytest.raises(InputError, match="hops must be at least 1"):
        SGC(3, 3, 0)


class TestFeaturesOfEdges:
    def test_gat_adds_them_to_its_logits(self):
        torch.manual_seed(0)
        edges = random_edges(NODES, EDGES)
        layer, x, attr = GAT(6, 5, 3, edge_features=4), torch.randn(NODES, 6), torch.randn(EDGES, 4)
        attr.requires_grad_()
        y = layer(x, Graph.of(edges, num_nodes=NODES), attr)
        y.square().sum().backward()
        own = copy.deepcopy(layer).double()
        wide = attr.detach().double().requires_grad_()
        others = edges[0] != edges[1]
        to = edges[1, others]
        sums = torch.zeros(NODES, 4).double().index_add(0, to, wide[others])
        means = sums / to.bincount(minlength=NODES).clamp_min(1)[:, None]
        all_edges = with_loops(edges, NODES)
        h = F.linear(x.double(), own.lin.weight).view(NODES, 3, -1)
        of_edges = own.lin_edge(torch.cat([wide[others], means])).view(-1, 3, 5)
        logits = (h * own.att_src).sum(-1)[all_edges[0]] + (h * own.att_dst).sum(-1)[all_edges[1]]
        logits = F.leaky_relu(logits + (of_edges * own.att_edge).sum(-1), 0.2)
        expected = attention_of(h, logits, all_edges, NODES).flatten(1) + own.bias
        expected.square().sum().backward()
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(attr.grad.double(), wide.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            layer.lin_edge.weight.grad.double(), own.lin_edge.weight.grad, rtol=1e-4, atol=1e-4
        )

    def test_they_must_be_there_if_and_only_if_the_layer_has_them(self):
        edges, x = random_edges(NODES, EDGES), torch.randn(NODES, 6)
        with pytest.raises(InputError, match="this layer has none, the call them"):
            GAT(6, 5)(x, edges, torch.ones(EDGES, 2))
        with pytest.raises(InputError, match="this layer has them, the call none"):
            GAT(6, 5, edge_features=2)(x, edges)
        with pytest.raises(
            InputError, match=r"expected features of edges \[240, D\], got \[3, 1\]"
        ):
            GAT(6, 5, edge_features=2)(x, edges, torch.ones(3, 2))

    def test_pruned_and_compact_layers_have_them_too(self):
        torch.manual_seed(0)
        edges, x, attr = random_edges(NODES, EDGES), torch.randn(NODES, 6), torch.randn(EDGES, 4)
        model = nn.ModuleList([GAT(6, 8, 2, edge_features=4)])
        gossamer.sparsify(model, sparsity=0.5)
        masked = model[0](x, edges, attr)
        gossamer.compact(model)
        torch.testing.assert_close(model[0](x, edges, attr), masked, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: GCN(6, 5), lambda: SAGE(6, 5), lambda: GAT(6, 5, 2)])
def test_bfloat16_is_near_float32(make):
    torch.manual_seed(0)
    layer, x, edges = make(), torch.randn(NODES, 6), random_edges(NODES, EDGES)
    exact = layer(x, edges)
    layer.bfloat16()
    for _ in range(3):  # fresh, then kept
        y = layer(x.bfloat16(), edges)
        y.sum().backward()
        assert y.dtype is torch.bfloat16
        torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("make", [lambda: GCN(3, 64), lambda: LightGCN(1)])
def test_large_features_that_come_again_are_moved_once(make, monkeypatch):
    moved = []
    monkeypatch.setattr("gossamer.graph.orders.kept.offer_huge_pages", moved.append)
    monkeypatch.setattr("gossamer.graph.orders.kept._WORTH_MOVING", 400)
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    layer, x, small = make(), torch.randn(40, 3), torch.randn(4, 3)
    layer.keeps = False
    for _ in range(4):
        layer(x, Graph.of(edges, num_nodes=40))
    assert len(moved) == 1
    assert moved[0] is x
    for _ in range(2):
        layer(small, Graph.of(edges, num_nodes=4))
    for _ in range(3):
        layer(torch.randn(40, 3), Graph.of(edges, num_nodes=40))
    assert len(moved) == 1
