# SPDX-License-Identifier: Apache-2.0
"""Models of PyG before and after: the same outputs, gradients and state dicts."""

import copy

import pytest
import torch
from graph_cases import random_edges
from torch import nn

from gossamer.errors import InputError
from gossamer.graph import accelerate, explain

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
NODES, EDGES = 60, random_edges(60, 300)


class Net(nn.Module):
    def __init__(self, *convs):
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x, edge_index, *weight):
        for number, conv in enumerate(self.convs):
            x = conv(torch.relu(x) if number else x, edge_index, *weight)
        return x


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


# name -> (convolutions, "no", "fixed" or "learned" weights of edges)
NETS = {
    "gcn": (lambda: [pyg.GCNConv(24, 16), pyg.GCNConv(16, 40)], "no"),
    "gcn weighted": (lambda: [pyg.GCNConv(24, 16), pyg.GCNConv(16, 40, improved=True)], "fixed"),
    "gcn learned": (lambda: [pyg.GCNConv(24, 16), pyg.GCNConv(16, 4, normalize=False)], "learned"),
    "gcn no loops": (lambda: [pyg.GCNConv(24, 16, add_self_loops=False, bias=False)], "fixed"),
    "sage": (lambda: [pyg.SAGEConv(24, 64), pyg.SAGEConv(64, 7, normalize=True)], "no"),
    "sage max": (
        lambda: [pyg.SAGEConv(24, 64, aggr="max"), pyg.SAGEConv(64, 7, "max", project=True)],
        "no",
    ),
    "sage sum": (lambda: [pyg.SAGEConv(24, 7, aggr="add", root_weight=False)], "no"),
    "gin": (lambda: [pyg.GINConv(mlp(24, 64)), pyg.GINConv(mlp(64, 8), 0.3, True)], "no"),
    "gat": (
        lambda: [pyg.GATConv(24, 8, 8), pyg.GATConv(64, 7, 3, concat=False, residual=True)],
        "no",
    ),
    "gat of edges": (
        lambda: [
            pyg.GATConv(24, 8, 8, edge_dim=1),
            pyg.GATConv(64, 7, 3, concat=False, edge_dim=1, add_self_loops=False),
        ],
        "learned",
    ),
    "gatv2": (
        lambda: [pyg.GATv2Conv(24, 8, 8), pyg.GATv2Conv(64, 7, 3, False, share_weights=True)],
        "no",
    ),
    "sgc": (lambda: [pyg.SGConv(24, 16, K=3)], "fixed"),
    "lightgcn": (lambda: [pyg.LGConv(), pyg.LGConv()], "fixed"),
}


def outcome(model, x, needs_dx, kind):
    model.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_() if needs_dx else x
    weight = torch.linspace(0.1, 1, EDGES.shape[1]).requires_grad_(kind == "learned")
    y = model(x, EDGES, *([weight] if kind != "no" else []))
    if y.requires_grad:
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y.detach(), x.grad, weight.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("name", NETS)
def test_outputs_and_gradients_are_the_same(name):
    torch.manual_seed(0)
    make, kind = NETS[name]
    model = Net(*make())
    fast = copy.deepcopy(model)
    report = accelerate(fast)
    assert report.left == {}
    assert len(report.replaced) == len(model.convs)
    assert list(model.state_dict()) == list(fast.state_dict())
    x = torch.randn(NODES, 24)
    for needs_dx in (True, False, False, False):
        pairs = zip(
            outcome(model, x, needs_dx, kind), outcome(fast, x, needs_dx, kind), strict=True
        )
        for expected, found in pairs:
            if expected is None:
                assert found is None
                continue
            scale = 1 + float(expected.abs().max())
            torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=1e-5)


def test_parameters_are_taken_over_not_copied():
    model = Net(pyg.GCNConv(24, 16), pyg.GATConv(16, 4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = [p.clone() for p in model.parameters()]
    accelerate(model)
    model(torch.randn(NODES, 24), EDGES).sum().backward()
    optimizer.step()
    after = list(model.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before[:1], after[:1], strict=True))
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in after}


def test_what_is_not_known_stays_and_is_named():
    model = Net(
        pyg.GraphConv(24, 8),
        pyg.GATv2Conv(8, 8, edge_dim=3),
        pyg.GCNConv(8, 4, flow="target_to_source"),
        pyg.SAGEConv(-1, 4),
        pyg.SAGEConv(8, 4, aggr="median"),
    )
    report = accelerate(model)
    assert report.replaced == []
    assert list(report.left) == [f"convs.{i}" for i in range(5)]
    text = str(report)
    for part in ("GraphConv is not known", "edge_dim", "target_to_source", "call the model once"):
        assert part in text
    with pytest.raises(InputError, match="is a single layer"):
        accelerate(pyg.GCNConv(3, 4))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_shared_layer_stays_shared_and_sparse_adjacency_works():
    conv = pyg.GCNConv(24, 24)
    model = Net(conv, conv)
    fast = copy.deepcopy(model)
    accelerate(fast)
    assert fast.convs[0] is fast.convs[1]
    x = torch.randn(NODES, 24)
    torch.testing.assert_close(fast(x, EDGES), model(x, EDGES), rtol=1e-4, atol=1e-5)
    adj_t = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(300), (NODES, NODES)).coalesce()
    csr = adj_t.to_sparse_csr()
    torch.testing.assert_close(fast(x, csr), model(x, csr), rtol=1e-4, atol=1e-5)
    assert [row.layer for row in explain(fast)] == ["GCN"]


def test_attention_dropout_drops_as_many_weights():
    torch.manual_seed(0)
    model = Net(pyg.GATConv(24, 4, 2, dropout=0.5))
    fast = copy.deepcopy(model)
    accelerate(fast)
    x = torch.randn(NODES, 24)
    torch.testing.assert_close(fast.eval()(x, EDGES), model.eval()(x, EDGES), rtol=1e-4, atol=1e-5)
    fast.train()
    with torch.no_grad():
        mean = torch.stack([fast(x, EDGES) for _ in range(300)]).mean(0)
        error = (mean - fast.eval()(x, EDGES)).abs().mean() / mean.abs().mean()
    assert 0 < float(error) < 0.1


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ["appnp", "gcn", "sgc"])
def test_loops_of_a_matrix_count_as_in_pyg(name):
    """PyG adds GCN's loops to those of a matrix, and fills them into an edge list."""
    from torch_geometric.utils import to_torch_csr_tensor

    from gossamer.graph import GCN
    from gossamer.graph.layers import APPNP, SGC

    pairs = {
        "appnp": (pyg.APPNP(3, 0.2), APPNP(3, 0.2)),
        "gcn": (pyg.GCNConv(24, 5), GCN(24, 5)),
        "sgc": (pyg.SGConv(24, 5, 2), SGC(24, 5, 2)),
    }
    theirs, ours = pairs[name]
    ours.load_state_dict(theirs.state_dict())
    edges = torch.tensor([[0, 1, 2, 2, 3], [1, 0, 2, 0, 3]])
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(2))
    for graph in (edges, to_torch_csr_tensor(edges.flip(0), size=(4, 4))):
        torch.testing.assert_close(ours(x, graph), theirs(x, graph), rtol=1e-5, atol=1e-5)
