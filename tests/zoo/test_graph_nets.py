# SPDX-License-Identifier: Apache-2.0
"""Models of graphs: arguments rebuild them, artifacts hold them, and what they refuse."""

import pytest
import torch

import gossamer
from gossamer.errors import InputError
from gossamer.graph import Graph
from gossamer.zoo import ZOO
from gossamer.zoo.graph_nets import GraphNet, Recommender

LAYERS = ("gcn", "sage", "gin", "gat", "gatv2")
GRAPH = Graph.of(torch.tensor([[0, 1, 2, 3, 3, 0], [1, 2, 0, 0, 1, 3]]), num_nodes=5)


@pytest.mark.parametrize("layer", LAYERS)
def test_it_is_saved_and_loaded_without_help(tmp_path, layer):
    torch.manual_seed(0)
    heads = 2 if layer.startswith("gat") else 1
    model = GraphNet(6, 3, layer=layer, width=8, num_layers=3, heads=heads).eval()
    assert ZOO["graph-net"](**model.zoo_args()).zoo_args() == model.zoo_args()
    gossamer.save(model, tmp_path / "m")
    again = gossamer.load(tmp_path / "m").eval()
    x = torch.randn(5, 6)
    with torch.inference_mode():
        assert torch.equal(again(x, GRAPH), model(x, GRAPH))
        assert model(x, GRAPH).shape == (5, 3)


def test_a_recommender_spreads_its_rows(tmp_path):
    torch.manual_seed(0)
    model = Recommender(5, width=4, hops=2)
    gossamer.save(model, tmp_path / "m")
    again = gossamer.load(tmp_path / "m")
    with torch.inference_mode():
        found = again(GRAPH)
        rows = model.rows.weight.double()
        matrix = torch.zeros(5, 5, dtype=torch.float64)
        for source, target in ((0, 1), (1, 2), (2, 0), (3, 0), (3, 1), (0, 3)):
            matrix[target, source] += 1
        degrees = matrix.sum(1)
        roots = torch.where(degrees > 0, degrees, 1.0).rsqrt() * (degrees > 0)
        matrix = roots[:, None] * matrix * roots[None]
        expected = (rows + matrix @ rows + matrix @ (matrix @ rows)) / 3
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: GraphNet(0, 2), "num_features"),
        (lambda: GraphNet(2, 2, layer="cheb"), "must be one of gcn"),
        (lambda: GraphNet(2, 2, width=6, heads=4), "divisible by heads"),
        (lambda: GraphNet(2, 2, dropout=1.0), "dropout must be in"),
        (lambda: Recommender(0), "num_nodes"),
        (lambda: Recommender(3, hops=-1), "hops"),
    ],
)
def test_what_is_refused(build, text):
    with pytest.raises(InputError, match=text):
        build()
