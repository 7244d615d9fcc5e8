# SPDX-License-Identifier: Apache-2.0
"""Layers of graph neural networks: `layer(x, graph)`.

Parameters have the names they have in PyTorch Geometric, so that state dicts go both ways. The
weights inside are ordinary linear layers: they can be pruned, compacted and compiled like others.
"""

from gossamer.graph.layers.attention import GAT, GATv2
from gossamer.graph.layers.convolution import GCN
from gossamer.graph.layers.hops import APPNP, SGC, LightGCN
from gossamer.graph.layers.neighbours import GIN, SAGE

__all__ = ["APPNP", "GAT", "GCN", "GIN", "SAGE", "SGC", "GATv2", "LightGCN"]
