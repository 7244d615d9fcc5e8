# SPDX-License-Identifier: Apache-2.0
"""What a sparse network moves between a small fast memory and a large slow one, and how to save.

The model, re-derived from arXiv 2301.01048: native/include/gossamer/io_order.hpp. It counts values
for one input at a time, for networks small enough to be ordered connection by connection; layers
of a real model are packed in blocks instead, and their order matters less, see
docs/explanation/neurons.md.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.ops import _native

Order = list[tuple[int, int]]


@dataclass(frozen=True)
class Network:
    """A feed-forward network of single neurons.

    Attributes:
        neurons: how many there are, inputs first.
        inputs: those that nothing leads to.
        outputs: those that lead nowhere.
        connections: (from, to) in canonical order: neuron by neuron, all into one together.
    """

    neurons: int
    inputs: int
    outputs: int
    connections: Order

    @classmethod
    def of_masks(cls, masks: Sequence[torch.Tensor]) -> "Network":
        """Layers that follow one another, each a bool mask [outputs, inputs]."""
        if not masks:
            raise InputError("io order: expected at least one mask [outputs, inputs].")
        for before, after in itertools.pairwise(masks):
            if before.shape[0] != after.shape[1]:
                raise InputError(
                    f"io order: a layer of {before.shape[0]} outputs cannot feed one of"
                    f" {after.shape[1]} inputs."
                )
        first = [0, masks[0].shape[1]]
        for mask in masks:
            first.append(first[-1] + mask.shape[0])
        connections = [
            (first[layer] + column, first[layer + 1] + row)
            for layer, mask in enumerate(masks)
            for row, column in mask.nonzero().tolist()
        ]
        return cls(first[-1], masks[0].shape[1], masks[-1].shape[0], connections)

    @property
    def lower_bound(self) -> int:
        """No order moves fewer: every weight, every input or bias once, every output."""
        return len(self.connections) + self.neurons + self.outputs

    @property
    def upper_bound(self) -> int:
        """The canonical order never moves more, with 3 values of fast memory."""
        return 2 * (len(self.connections) + self.neurons - self.inputs)


@dataclass(frozen=True)
class Io:
    """Values moved."""

    reads: int
    writes: int

    @property
    def total(self) -> int:
        """Both."""
        return self.reads + self.writes


def count_io(
    network: Network, memory: int, order: Order | None = None, *, knows_future: bool = True
) -> Io:
    """Simulate an order of the connections.

    Args:
        network: whose connections they are.
        memory: values the fast memory holds, at least 3.
        order: None for the canonical one. Connections into a neuron come before those out of it.
        knows_future: evict what is used again last, with which no other choice needs fewer reads;
            False for least recently used, as caches do.
    """
    wanted = _checked(network, memory, order)
    return Io(*_native.count_io(wanted, network.neurons, memory, knows_future))


def anneal(
    network: Network,
    memory: int,
    *,
    moves: int = 20_000,
    start: float = 1.5,
    seed: int = 0,
    order: Order | None = None,
) -> Order:
    """An order that moves fewer values, by simulated annealing from `order` or the canonical one.

    The best order met is returned, so it is never worse than the one it started from. A move costs
    a simulation, about W log M steps for W connections.
    """
    wanted = _checked(network, memory, order)
    if moves < 0 or not start >= 0:
        raise InputError(f"io order: moves and start must not be negative, got {moves}, {start}.")
    return _native.anneal_order(wanted, network.neurons, memory, moves, start, seed)


def grow_compact(memory: int, neurons: int, degree: int, *, seed: int = 0) -> Network:
    """A network that meets the lower bound with `memory` values: it is built while it is run.

    Args:
        memory: values of fast memory it is grown for, at least 4.
        neurons: how many are added to the inputs.
        degree: connections into each of them.
        seed: of the random choices.
    """
    if memory < 4 or not 1 <= degree <= memory - 2 or neurons < 1:
        raise InputError(
            f"io order: expected memory >= 4, 1 <= degree <= memory - 2 and neurons >= 1, got"
            f" {memory}, {degree}, {neurons}."
        )
    draw = random.Random(seed)  # noqa: S311  (no secret)
    inputs = memory - 2
    live = list(range(inputs))
    connections: Order = []
    fed = set()
    for neuron in range(inputs, inputs + neurons):
        sources = draw.sample(live, degree)
        connections += [(source, neuron) for source in sources]
        fed.update(sources)
        live[live.index(sources[0])] = neuron
    used = fed | set(range(inputs, inputs + neurons))
    # Inputs that were never drawn are no part of the network.
    number = {old: new for new, old in enumerate(sorted(used))}
    renamed = [(number[a], number[b]) for a, b in connections]
    return Network(len(used), len(used) - neurons, len(used - fed), renamed)


def _checked(network: Network, memory: int, order: Order | None) -> Order:
    """The order, or the canonical one for None."""
    if memory < 3:
        raise InputError(
            f"io order: memory must hold at least 3 values (a weight and the two ends of its"
            f" connection), got {memory}."
        )
    if order is None:
        return network.connections
    if sorted(order) != sorted(network.connections):
        raise InputError("io order: an order must hold every connection of the network once.")
    used = set()
    for source, target in order:
        if target in used:
            raise InputError(
                f"io order: neuron {target} is used before connection {source} -> {target} into it."
            )
        used.add(source)
    return order
