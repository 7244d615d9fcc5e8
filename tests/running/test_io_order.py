# SPDX-License-Identifier: Apache-2.0
"""Two-level memory: bounds, eviction, annealing and networks that meet the lower bound."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError
from gossamer.running.layers.io_order import Network, anneal, count_io, grow_compact


def layered(width=64, layers=4, density=0.1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    masks = [torch.rand(width, width, generator=generator) < density for _ in range(layers - 1)]
    for mask in masks:  # every neuron has a connection in and one out
        mask[torch.arange(width), torch.arange(width)] = True
    return Network.of_masks(masks)


def fewest_reads(order, memory):
    """All choices of eviction tried out, the best kept."""

    def best(step, resident):
        if step == len(order):
            return 0
        a, b = order[step]
        later = [set(pair) for pair in order[step + 1 :]]
        needed = set().union(*later)
        missing = [n for n in (a, b) if n not in resident]
        room = memory - 1 - len(resident)
        evictable = [n for n in resident if n not in (a, b)]
        lowest = None
        for gone in itertools.combinations(evictable, max(0, len(missing) - room)):
            kept = {n for n in resident | {a, b} if n not in gone and n in needed}
            total = 1 + len(missing) + best(step + 1, kept)
            lowest = total if lowest is None else min(lowest, total)
        return lowest

    return best(0, set())


def unused(network):
    """Reads and writes that neurons without connections are spared."""
    seen = {neuron for pair in network.connections for neuron in pair}
    fed = {target for _, target in network.connections}
    outputs = range(network.neurons - network.outputs, network.neurons)
    return network.neurons - len(seen) + sum(neuron not in fed for neuron in outputs)


def test_bounds_of_a_layered_network():
    network = layered()
    connections = len(network.connections)
    assert network.lower_bound == connections + 256 + 64
    assert network.upper_bound == 2 * (connections + 256 - 64)
    assert count_io(network, 3).total == network.upper_bound
    assert count_io(network, 3, knows_future=False).total == network.upper_bound
    # Two layers fit: everything is read once.
    assert count_io(network, 130).total == network.lower_bound
    totals = [count_io(network, memory).total for memory in (3, 8, 16, 32, 64, 130)]
    assert totals == sorted(totals, reverse=True)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 999),
    memory=st.integers(3, 5),
    widths=st.lists(st.integers(1, 3), min_size=2, max_size=3),
)
def test_farthest_use_reads_least(seed, memory, widths):
    generator = torch.Generator().manual_seed(seed)
    masks = [
        torch.rand(after, before, generator=generator) < 0.8
        for before, after in itertools.pairwise(widths)
    ]
    network = Network.of_masks(masks)
    found = count_io(network, memory)
    assert found.reads == fewest_reads(network.connections, memory)
    assert found.reads <= count_io(network, memory, knows_future=False).reads
    assert network.lower_bound - unused(network) <= found.total <= network.upper_bound


def test_annealing_finds_a_better_valid_order():
    network = layered(width=24, layers=3, density=0.15)
    before = count_io(network, 10).total
    order = anneal(network, 10, moves=3000)
    after = count_io(network, 10, order).total
    assert sorted(order) == sorted(network.connections)
    assert network.lower_bound <= after < before
    assert anneal(network, 10, moves=3000) == order
    assert anneal(network, 10, moves=0) == network.connections


@pytest.mark.parametrize(("memory", "degree"), [(4, 2), (8, 3), (32, 5)])
def test_compact_growth_meets_the_lower_bound(memory, degree):
    network = grow_compact(memory, 300, degree)
    assert len(network.connections) == 300 * degree
    assert count_io(network, memory, knows_future=False).total == network.lower_bound
    assert count_io(network, memory).total == network.lower_bound
    assert count_io(network, max(3, memory // 2)).total > network.lower_bound


def test_one_connection():
    network = Network.of_masks([torch.tensor([[True]])])
    io = count_io(network, 3)
    assert (io.reads, io.writes) == (3, 1)
    assert io.total == network.lower_bound == 4


def test_refusals():
    network = layered(width=4, layers=3, density=0.5)
    with pytest.raises(InputError, match="at least 3 values"):
        count_io(network, 2)
    with pytest.raises(InputError, match="every connection of the network once"):
        count_io(network, 5, network.connections[1:])
    with pytest.raises(InputError, match="is used before connection"):
        count_io(network, 5, network.connections[::-1])
    with pytest.raises(InputError, match="cannot feed"):
        Network.of_masks([torch.ones(3, 2).bool(), torch.ones(2, 2).bool()])
    with pytest.raises(InputError, match="expected memory >= 4"):
        grow_compact(3, 10, 1)
