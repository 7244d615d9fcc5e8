# SPDX-License-Identifier: Apache-2.0
"""Batches of nodes with some of their neighbours (GraphSAGE's sampling).

A batch is a function of the seed and its number: any process can make any of them, in any order,
and a run that resumes sees the batches it would have seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.graph.structure import Graph
from gossamer.ops.spmm import EdgeRows

_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class NeighbourBatch:
    """Some nodes, what was drawn around them, and the graph between these.

    Attributes:
        nodes: int64 [n], numbers in the large graph; the batch's own nodes come first.
        num_own: how many of them are the batch's own: the loss belongs to these.
        graph: between `nodes`, with the weights of the large graph.
    """

    nodes: Tensor
    num_own: int
    graph: Graph


class NeighbourBatches:
    """Batches of an epoch: `batches[i]`, or iterate.

    Args:
        graph: the large one; sources and targets are the same nodes.
        fanouts: neighbours per node, for each layer from the batch outwards.
        batch_size: nodes per batch.
        nodes: which nodes are the batches' own; all if absent.
        seed: of everything that is drawn.
        shuffle: own nodes come in a random order, another one in each epoch.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        batch_size: int,
        *,
        nodes: Tensor | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if graph.num_sources != graph.num_targets:
            raise InputError("NeighbourBatches: a bipartite graph cannot be sampled.")
        if graph.edges.by_target.row_ids is not None:
            raise InputError("NeighbourBatches: make the graph with order='given'.")
        if batch_size < 1 or not fanouts or min(fanouts) < 1:
            raise InputError(
                f"NeighbourBatches: batch_size and fanouts must be positive, got {batch_size} and"
                f" {list(fanouts)}."
            )
        self.graph, self.fanouts, self.batch_size = graph, tuple(fanouts), batch_size
        self.nodes = torch.arange(graph.num_targets) if nodes is None else nodes.long()
        self.seed, self.shuffle = seed, shuffle

    def __len__(self) -> int:
        return -(-len(self.nodes) // self.batch_size)

    def __iter__(self) -> Iterator[NeighbourBatch]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> NeighbourBatch:
        """Batch `number`, counted on through all epochs."""
        if number < 0 or not len(self):
            raise IndexError(number)
        epoch, place = divmod(number, len(self))
        if number >= len(self) and not self.shuffle:
            epoch = 0
        own = self._own_nodes(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        return self.around(own, number)

    def _own_nodes(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return self.nodes
        generator = torch.Generator().manual_seed((self.seed * _MIX + epoch) % 2**63)
        return self.nodes[torch.randperm(len(self.nodes), generator=generator)]

    def around(self, own: Tensor, number: int) -> NeighbourBatch:
        """These nodes with neighbours as batch `number` draws them."""
        rows: EdgeRows = self.graph.edges.by_target
        columns = rows.columns
        local = torch.full((self.graph.num_targets,), -1, dtype=torch.int64)
        local[own] = torch.arange(len(own))
        nodes, edges, ends = [own], [], []
        frontier, count = own, len(own)
        for hop, fanout in enumerate(self.fanouts):
            seed = (self.seed * _MIX + number * 1_000_003 + hop) % 2**64
            places, counts = rows.sample(frontier, fanout, seed)
            edges.append(places)
            ends.append(frontier.repeat_interleave(counts))
            found = columns[places].long().unique()  # type: ignore[no-untyped-call]
            frontier = found[local[found] < 0]
            local[frontier] = torch.arange(count, count + len(frontier))
            count += len(frontier)
            nodes.append(frontier)
        places = torch.cat(edges)
        pair = local[columns[places].long()], local[torch.cat(ends)]
        weight = self.graph.weight
        if weight is not None:
            weight = self.graph.edges.ordered(weight)[places]
        return NeighbourBatch(torch.cat(nodes), len(own), Graph.of(pair, weight, num_nodes=count))
