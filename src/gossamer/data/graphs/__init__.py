# SPDX-License-Identifier: Apache-2.0
"""Graphs from files to batches: nodes with features and classes, and pairs that go together.

`read_nodes` and `read_links` read a file of arrays (.npz) or tables (.csv, .tsv) by one
`GraphRules`. `NodeBatches` and `LinkBatches` are batches by number; `link_metrics` compares vectors
with pairs that were held out.
"""

from gossamer.data.graphs.batches import LinkBatches, NodeBatches
from gossamer.data.graphs.links import LinkData, read_links
from gossamer.data.graphs.metrics import link_metrics
from gossamer.data.graphs.nodes import NodeData, read_nodes
from gossamer.data.graphs.rules import GraphRules

__all__ = [
    "GraphRules",
    "LinkBatches",
    "LinkData",
    "NodeBatches",
    "NodeData",
    "link_metrics",
    "read_links",
    "read_nodes",
]
