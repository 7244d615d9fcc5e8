# SPDX-License-Identifier: Apache-2.0
"""Generated graphs whose answers are known: a planted partition, and planted tastes.

Nodes of a planted partition have a class each; nodes of one class are joined more often than
others, and features say a little about the class. Users of planted tastes take items of their own
kind more often than others. In both the chances are known, so that the best guess is, too.

Legend: N nodes, E edges, F features, P pairs.
"""

import math
from dataclasses import dataclass

import torch

from gossamer.errors import InputError

__all__ = ["PartitionProblem", "TasteProblem", "partition_problem", "taste_problem"]


@dataclass(frozen=True)
class PartitionProblem:
    """A planted partition.

    Attributes:
        edges: int64 [2, E], each edge once.
        x: float32 [N, F]: the class as one of K, with noise.
        y: int64 [N].
        inside: chance of an edge between nodes of one class.
        between: chance of an edge between other nodes.
        signal: how far features of two classes are apart, in standard deviations of the noise.
    """

    edges: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    inside: float
    between: float
    signal: float

    def best_guess(self) -> torch.Tensor:
        """The most probable class of each node, if those of all others are known.

        No classifier that sees less is right more often, on average over such problems.
        """
        num_classes = int(self.y.max()) + 1
        one_of = torch.nn.functional.one_hot(self.y, num_classes).double()
        counts = torch.zeros_like(one_of)
        sources, targets = self.edges
        counts.index_add_(0, targets, one_of[sources])
        counts.index_add_(0, sources, one_of[targets])
        # Of each class a node is joined to some and not joined to the rest of them.
        joined = math.log(self.inside / self.between)
        apart = math.log((1 - self.inside) / (1 - self.between))
        others = one_of.sum(0) - one_of
        odds = counts * joined + (others - counts) * apart + self.signal * self.x.double()
        return odds.argmax(1)


def partition_problem(
    generator: torch.Generator,
    *,
    num_nodes: int = 600,
    num_classes: int = 4,
    inside: float = 0.03,
    between: float = 0.005,
    signal: float = 1.0,
) -> PartitionProblem:
    """A graph of classes of equal size."""
    if num_nodes < num_classes or num_classes < 2 or not 0 < between < inside < 1:
        raise InputError(
            f"partition_problem: expected 2 classes or more, as many nodes, and chances with 0 <"
            f" between < inside < 1; got {num_classes}, {num_nodes}, {between} and {inside}."
        )
    y = torch.arange(num_nodes) % num_classes
    first, second = torch.triu_indices(num_nodes, num_nodes, offset=1)
    chance = torch.where(y[first] == y[second], inside, between)
    is_edge = torch.rand(len(first), generator=generator) < chance
    noise = torch.randn(num_nodes, num_classes, generator=generator)
    x = signal * torch.nn.functional.one_hot(y, num_classes).float() + noise
    edges = torch.stack([first[is_edge], second[is_edge]])
    return PartitionProblem(edges, x, y, inside, between, signal)


@dataclass(frozen=True)
class TasteProblem:
    """Users and the items they took.

    Attributes:
        pairs: int64 [P, 2], user and item, both counted from 0.
        num_users: how many.
        num_items: how many.
        user_kind: int64 [users].
        item_kind: int64 [items].
    """

    pairs: torch.Tensor
    num_users: int
    num_items: int
    user_kind: torch.Tensor
    item_kind: torch.Tensor

    def best_auc(self) -> float:
        """The chance that a taken item is ranked above one that was not, if kinds are known."""
        users, items = self.pairs.T
        taken = torch.zeros(self.num_users, self.num_items, dtype=torch.bool)
        taken[users, items] = True
        own = self.user_kind[:, None] == self.item_kind[None]
        right = (own & taken).sum(1).double() / taken.sum(1).clamp_min(1)
        wrong = (own & ~taken).sum(1).double() / (~taken).sum(1).clamp_min(1)
        of_users = 0.5 + (right - wrong) / 2  # ties count half
        counts = taken.sum(1).double()
        return float((of_users * counts).sum() / counts.sum())


def taste_problem(
    generator: torch.Generator,
    *,
    num_users: int = 300,
    num_items: int = 200,
    num_kinds: int = 5,
    inside: float = 0.25,
    between: float = 0.02,
) -> TasteProblem:
    """Users who take items of their kind with chance `inside`, others with `between`."""
    if min(num_users, num_items, num_kinds) < 1 or not 0 <= between <= inside <= 1:
        raise InputError(
            f"taste_problem: expected users, items, kinds, and chances with 0 <= between <= inside"
            f" <= 1; got {num_users}, {num_items}, {num_kinds}, {between} and {inside}."
        )
    user_kind, item_kind = torch.arange(num_users) % num_kinds, torch.arange(num_items) % num_kinds
    chance = torch.where(user_kind[:, None] == item_kind[None], inside, between)
    pairs = (torch.rand(chance.shape, generator=generator) < chance).nonzero()
    return TasteProblem(pairs, num_users, num_items, user_kind, item_kind)
