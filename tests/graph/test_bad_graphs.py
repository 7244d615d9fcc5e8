# SPDX-License-Identifier: Apache-2.0
"""What no graph can be, in one sentence each: too many nodes, too much memory."""

import subprocess
import sys

import pytest
import torch

from gossamer.errors import InputError
from gossamer.graph import GCN, SAGE, Graph, explain

TOO_LARGE = """
import resource, torch
from gossamer.errors import ResourceError
from gossamer.graph import Graph
torch.zeros(2, 2) @ torch.zeros(2, 2)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
try:
    Graph.of(torch.tensor([[0], [1]]), num_nodes=2**31 - 2)
except ResourceError as error:
    print(error)
"""


def test_a_graph_larger_than_memory():
    done = subprocess.run(
        [sys.executable, "-c", TOO_LARGE], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.startswith("graph: out of memory, an allocation"), done.stderr
    assert "Give a part of it" in done.stdout


def test_nodes_beyond_32_bits_are_told_from_the_edges_alone():
    with pytest.raises(InputError, match="8589934594 nodes do not fit 32-bit indices"):
        Graph.of(torch.tensor([[0], [2**33 + 1]]))
    with pytest.raises(InputError, match=r"edge 0 has target 8589934593, but there are 5"):
        GCN(2, 2)(torch.zeros(5, 2), torch.tensor([[0], [2**33 + 1]]))


def test_a_maximum_is_never_taken_behind_the_weight():
    """Whatever the widths are: a maximum of sums is no sum of maxima."""
    edges = torch.tensor([[0, 1, 2], [2, 2, 0]])
    for inputs, outputs in ((64, 2), (2, 64)):
        layer = SAGE(inputs, outputs, aggregate="max", root=False)
        x = torch.randn(3, inputs, generator=torch.Generator().manual_seed(0))
        found = layer(x, edges)
        (row,) = explain(torch.nn.ModuleList([layer]))
        assert row.order == "propagate first"
        assert "a maximum is not linear: order is fixed" in row.why
        best = torch.stack([x[2], torch.zeros(inputs), torch.maximum(x[0], x[1])]).double()
        expected = best @ layer.lin_l.weight.double().t() + layer.lin_l.bias.double()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
