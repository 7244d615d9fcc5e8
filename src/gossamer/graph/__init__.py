# SPDX-License-Identifier: Apache-2.0
"""Graph neural networks on the CPU: a `Graph`, layers that take it, and models of PyG made faster.

`GCN`, `SAGE`, `GIN` and `GAT` are here, the other layers in `gossamer.graph.layers`; batches of
large graphs are in `gossamer.graph.large`. `accelerate` puts these layers in the place of PyG's,
`explain` says in which order each of them multiplies, and `graph_layers` finds them in a model.
"""

from gossamer.graph.explaining import explain, graph_layers
from gossamer.graph.layers import GAT, GCN, GIN, SAGE
from gossamer.graph.pyg import accelerate
from gossamer.graph.structure import Graph

__all__ = ["GAT", "GCN", "GIN", "SAGE", "Graph", "accelerate", "explain", "graph_layers"]
