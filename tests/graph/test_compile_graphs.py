# SPDX-License-Identifier: Apache-2.0
"""Models of graphs are pruned, compacted, saved, loaded and compiled like any other."""

import copy

import pytest
import torch
from graph_cases import random_edges
from torch import nn

import gossamer
from gossamer.errors import DenseFallback
from gossamer.graph import explain as explain_orders
from gossamer.graph import graph_layers
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.layer_weights import weight_of
from gossamer.zoo.graph_nets import GraphNet

NODES = 70
EDGES = random_edges(NODES, 400)
LAYERS = ("gcn", "sage", "gin", "gat", "gatv2")


def features(width=32, seed=0):
    return torch.randn(NODES, width, generator=torch.Generator().manual_seed(seed))


def oracle(model):
    """The same model with ordinary layers, in float64."""
    plain = GraphNet(**model.zoo_args())
    own = dict(model.named_modules())
    for name, layer in plain.named_modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = weight_of(own[name]).clone()
            if layer.bias is not None:
                layer.bias.data = own[name].bias.detach().clone()
    state = {n: v for n, v in model.state_dict().items() if n in plain.state_dict()}
    plain.load_state_dict(
        {n: v for n, v in state.items() if ".lin" not in n and ".nn." not in n}, strict=False
    )
    return plain.double().eval()


def close(found, model, x):
    expected = oracle(model)(x.double(), EDGES)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("width", [8, 48])
def test_every_form_gives_the_same(tmp_path, layer, width):
    torch.manual_seed(0)
    model = GraphNet(32, 5, layer=layer, width=width, heads=2 if "gat" in layer else 1).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases that are not zero
            nn.init.normal_(parameter)
    x = features()
    gossamer.sparsify(model, sparsity=0.6)
    assert {form_of(m) for m in model.modules()} - {None} == {"masked"}
    with torch.no_grad():
        close(model(x, EDGES), model, x)
        gossamer.compact(model)
        assert {form_of(m) for m in model.modules()} - {None} == {"compact"}
        close(model(x, EDGES), model, x)
        gossamer.save(model, tmp_path / "m")
        again = gossamer.load(tmp_path / "m").eval()
        assert {form_of(m) for m in again.modules()} - {None} == {"compact"}
        close(again(x, EDGES), model, x)
        fast = gossamer.compile(again, tokens=NODES, kernel="panel", example=(x, EDGES))
        assert {form_of(m) for m in fast.modules()} - {None} == {"packed"}
        close(fast(x, EDGES), model, x)


def test_a_pruned_layer_still_transforms_first():
    torch.manual_seed(0)
    model = GraphNet(200, 3, width=16, dropout=0.0)
    gossamer.sparsify(model, sparsity=0.5)
    gossamer.compact(model)
    x = features(200)
    model(x, EDGES).sum().backward()
    found = explain_orders(model)
    assert [row.order for row in found] == ["transform first", "transform first"]
    assert model.layers[0].lin.values.grad.abs().sum() > 0


def test_training_with_zeros_follows_float64():
    torch.manual_seed(0)
    model = GraphNet(32, 3, layer="sage", width=16, dropout=0.0)
    gossamer.sparsify(model, sparsity=0.5)
    gossamer.compact(model)
    reference = oracle(model)
    x = features()
    model(x, EDGES).square().sum().backward()
    reference(x.double(), EDGES).square().sum().backward()
    for own, theirs in zip(model.layers, reference.layers, strict=True):
        torch.testing.assert_close(
            own.lin_l.bias.grad.double(), theirs.lin_l.bias.grad, rtol=1e-4, atol=1e-4
        )


pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = pyg.GCNConv(32, 48)
        self.second = pyg.SAGEConv(48, 16)
        self.third = pyg.TAGConv(16, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        return self.head(self.third(x, edge_index))


def test_a_model_of_pyg_is_compiled():
    torch.manual_seed(0)
    model = Net().eval()
    with torch.no_grad():
        for name in ("first.lin", "second.lin_l"):
            weight = model.get_submodule(name).weight
            weight.mul_(torch.rand(weight.shape) < 0.3)
    before = copy.deepcopy(model.state_dict())
    x = features()
    fast = gossamer.compile(model, tokens=NODES, kernel="panel", example=(x, EDGES))
    with torch.no_grad():
        expected = model.double()(x.double(), EDGES)
        torch.testing.assert_close(fast(x, EDGES).double(), expected, rtol=1e-4, atol=1e-5)
    assert {type(layer).__name__ for layer in graph_layers(fast)} == {"GCN", "SAGE"}
    assert form_of(fast.first.lin) == form_of(fast.second.lin_l) == "packed"
    assert form_of(fast.second.lin_r) == "dense"  # it has no zeros
    rows = {row.name: row for row in gossamer.explain(fast)}
    assert rows["third"].why == "TAGConv is not known here"
    assert rows["first.lin"].kernel == "panel"
    # The model itself is what it was.
    assert type(model.first) is pyg.GCNConv
    assert all(torch.equal(v.float(), before[n]) for n, v in model.state_dict().items())
    with pytest.raises(DenseFallback, match="TAGConv is not known here"), gossamer.strict():
        gossamer.compile(Net())


def test_a_single_convolution_is_compiled():
    conv, x = pyg.GCNConv(32, 7).eval(), features()
    fast = gossamer.compile(conv)
    assert type(fast).__name__ == "GCN"
    with torch.no_grad():
        torch.testing.assert_close(fast(x, EDGES), conv(x, EDGES), rtol=1e-5, atol=1e-5)
