# SPDX-License-Identifier: Apache-2.0
"""What a PyG model computes between its convolutions goes into memory that is used again."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from graph_cases import random_edges
from torch import nn

from gossamer.graph import accelerate
from gossamer.ops import elementwise
from gossamer.ops.results import drop_results

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
NODES, WIDTH = 9000, 128  # 4.4 MiB of hidden features
EDGES = random_edges(NODES, 3 * NODES)
X = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, between, fails=False):
        super().__init__()
        self.first, self.second = pyg.GCNConv(5, WIDTH), pyg.GCNConv(WIDTH, 3)
        self.between, self.fails = between, fails

    def forward(self, x, edge_index):
        h = self.between(self.first(x, edge_index))
        if self.fails:
            raise KeyError("of the model's own")
        return self.second(h, edge_index)


BETWEEN = {
    "function": F.relu,
    "method": torch.Tensor.relu,
    "module": nn.ReLU(),
    "in place": nn.ReLU(inplace=True),
    "elu": F.elu,
    "dropout": nn.Dropout(0.4),
}


@pytest.fixture
def calls(monkeypatch):
    """How often memory for a function between layers was asked for."""
    seen = []

    def noted(x):
        seen.append(tuple(x.shape))
        return found(x)

    found = elementwise._like
    monkeypatch.setattr(elementwise, "_like", noted)
    return seen


def results(net):
    torch.manual_seed(5)
    net.zero_grad()
    y = net(X, EDGES)
    F.cross_entropy(y, torch.zeros(NODES, dtype=torch.int64)).backward()
    return [y.detach(), *(p.grad.clone() for p in net.parameters())]


@pytest.mark.parametrize("name", BETWEEN)
def test_the_same_results_from_used_memory(name, calls):
    torch.manual_seed(0)
    net = Net(BETWEEN[name])
    expected = results(net)
    assert not calls
    assert accelerate(net).replaced == ["first", "second"]
    for found, other in zip(results(net), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)
    # Forward and backward; dropout also keeps what it multiplies by.
    assert len(calls) == {"in place": 0, "dropout": 3}.get(name, 2)
    assert set(calls) <= {(NODES, WIDTH)}


def test_nothing_is_watched_outside_of_the_model(calls):
    net = Net(F.relu)
    accelerate(net)
    net(X, EDGES)
    seen = len(calls)
    F.relu(torch.randn(NODES, WIDTH))
    assert len(calls) == seen


def test_a_model_that_fails_leaves_nothing_behind(calls):
    net, other = Net(F.relu, fails=True), Net(F.relu)
    accelerate(net)
    accelerate(other)
    for _ in range(2):
        with pytest.raises(KeyError):
            net(X, EDGES)
    seen = len(calls)
    F.relu(torch.randn(NODES, WIDTH))
    assert len(calls) == seen
    other(X, EDGES)
    assert len(calls) > seen


def test_models_inside_of_each_other():
    inner = Net(F.relu)
    accelerate(inner)
    outer = nn.Sequential(pyg.GCNConv(5, 5), inner)
    outer.forward = lambda x, edges: outer[1](F.relu(outer[0](x, edges)), edges)
    accelerate(outer)
    expected = outer(X, EDGES)
    torch.testing.assert_close(outer(X, EDGES), expected)
    assert not torch.overrides._get_current_function_mode_stack()


def test_accelerating_twice_watches_once():
    net = Net(F.relu)
    accelerate(net)
    net.third = pyg.GCNConv(3, 3)
    accelerate(net)
    assert len(net._forward_pre_hooks) == 1


def test_a_copy_keeps_it(calls):
    net = Net(F.relu)
    accelerate(net)
    expected = results(net)
    again, before = copy.deepcopy(net), len(calls)
    for found, other in zip(results(again), expected, strict=True):
        torch.testing.assert_close(found, other)
    assert len(calls) == before + 2


@pytest.fixture(autouse=True)
def _nothing_kept():
    yield
    gc.collect()
    drop_results()
