# SPDX-License-Identifier: Apache-2.0
"""Batches of nodes and of pairs by number: what batch k holds follows from the seed and k alone."""

import torch
from torch import Tensor

from gossamer.data.batches import ShuffledBatches, generator_of
from gossamer.data.graphs.links import LinkData

# An item that a user has taken is drawn again, this often at most.
_DRAWS = 4


class NodeBatches(ShuffledBatches):
    """Numbers of nodes, and the number of the batch beside each: neighbours are drawn by it.

    Args:
        nodes: to train on.
        size: nodes in a batch.
        seed: decides all orders.
    """

    def __init__(self, nodes: Tensor, size: int, seed: int) -> None:
        super().__init__(len(nodes), size, seed, nodes.__getitem__)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        nodes = super().__getitem__(number)
        return nodes, torch.full_like(nodes, number)


class LinkBatches(ShuffledBatches):
    """Triples [size, 3]: a user, an item of theirs, an item that they are not known to have.

    Args:
        data: pairs.
        size: triples in a batch.
        seed: decides orders, and which other items are drawn.
    """

    def __init__(self, data: LinkData, size: int, seed: int) -> None:
        pairs = data.parts["train"]
        super().__init__(len(pairs), size, seed, pairs.__getitem__)
        self._data, self._known = data, data.known("train")

    def __getitem__(self, number: int) -> Tensor:
        pairs: Tensor = super().__getitem__(number)
        generator = generator_of(self._seed, number, 1)
        others = other_items(self._data, pairs[:, :1], self._known, generator)
        return torch.cat([pairs, others], dim=1)


def other_items(
    data: LinkData, users: Tensor, known: Tensor, generator: torch.Generator, count: int = 1
) -> Tensor:
    """Items [users, count] that are not known to go with users [users, 1].

    Where nearly all of them do, one may slip in.
    """
    shape = (len(users), count)
    found = torch.randint(data.first_item, data.num_nodes, shape, generator=generator)
    for _ in range(_DRAWS):
        drawn = torch.randint(data.first_item, data.num_nodes, shape, generator=generator)
        found = torch.where(torch.isin(users * data.num_nodes + found, known), drawn, found)
    return found
