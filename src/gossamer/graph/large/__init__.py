# SPDX-License-Identifier: Apache-2.0
"""Graphs that are too large for one step, and many that are small.

`NeighbourBatches` draws batches of nodes with some of their neighbours, each a function of its
number; `infer` runs a model layer by layer over all nodes in bounded memory; `join` makes one graph
of many.
"""

from gossamer.graph.large.inference import infer
from gossamer.graph.large.joining import Joined, join
from gossamer.graph.large.sampling import NeighbourBatch, NeighbourBatches

__all__ = ["Joined", "NeighbourBatch", "NeighbourBatches", "infer", "join"]
