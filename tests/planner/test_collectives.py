# SPDX-License-Identifier: Apache-2.0
"""Rings, reduction trees and a parameter server: formulas against messages that are played."""

import pytest

from gossamer.planner.cluster import load_cluster
from gossamer.planner.collectives import reduce_bytes, reduce_time, tree_levels
from gossamer.planner.step_time import reduce_seconds, reduced_bytes
from gossamer.planner.workload import RankGrid

RANKS = (1, 2, 3, 4, 5, 8, 31, 128)
SPEED, LATENCY = 1e9, 1e-5


def played_tree(ranks):
    """(rounds, most messages that one rank sends) until all have the sum of all."""
    held = [{rank} for rank in range(ranks)]
    sent = [0] * ranks
    rounds, stride = 0, 1
    while stride < ranks:
        for low in range(0, ranks - stride, 2 * stride):
            held[low] |= held[low + stride]
            sent[low + stride] += 1
        rounds, stride = rounds + 1, 2 * stride
    assert held[0] == set(range(ranks))
    while stride > 1:
        stride //= 2
        for low in range(0, ranks - stride, 2 * stride):
            held[low + stride] = held[low]
            sent[low] += 1
        rounds += 1
    assert all(one == set(range(ranks)) for one in held)
    return rounds, max(sent)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_tree_is_as_deep_as_when_it_is_played(ranks):
    rounds, most = played_tree(ranks)
    assert 2 * tree_levels(ranks) == rounds
    seconds = reduce_time("tree", ranks, 4e6, SPEED, LATENCY)
    assert seconds == pytest.approx(rounds * (4e6 / SPEED + LATENCY))
    assert reduce_bytes("tree", ranks, 4e6, SPEED, LATENCY) == pytest.approx(most * 4e6)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_ring_sends_parts_around_twice(ranks):
    messages = 2 * (ranks - 1)
    seconds = reduce_time("ring", ranks, 4e6, SPEED, LATENCY)
    assert seconds == pytest.approx(messages * (4e6 / ranks / SPEED + LATENCY))
    sent = reduce_bytes("ring", ranks, 4e6, SPEED, LATENCY)
    assert sent == pytest.approx(messages * 4e6 / ranks)


def test_a_server_grows_with_its_workers_and_a_tree_with_their_logarithm():
    times = {
        kind: [reduce_time(kind, n, 50e6, SPEED, 0.0) for n in (16, 128)]
        for kind in ("server", "tree", "ring")
    }
    ratio = {kind: late / early for kind, (early, late) in times.items()}
    assert ratio["server"] == pytest.approx(8)
    assert ratio["tree"] == pytest.approx(7 / 4)
    assert ratio["ring"] == pytest.approx((127 / 128) / (15 / 16))


@pytest.mark.parametrize("payload", [0.0, 100.0, 1e5, 1e9])
def test_best_is_a_tree_for_few_bytes_and_a_ring_for_many(payload):
    given = (64, payload, SPEED, LATENCY)
    both = {kind: reduce_time(kind, *given) for kind in ("ring", "tree")}
    fastest = min(both, key=both.get)
    assert reduce_time("best", *given) == both[fastest]
    assert reduce_bytes("best", *given) == reduce_bytes(fastest, *given)
    assert fastest == ("ring" if payload > 1e6 else "tree")


def test_a_cluster_says_which_one():
    cluster = load_cluster("dgx-like")
    assert cluster.links.collective == "ring"
    grid = RankGrid(data=128, pipeline=1)
    seconds = {}
    for kind in ("ring", "tree", "server", "best"):
        links = cluster.links.model_copy(update={"collective": kind})
        other = cluster.model_copy(update={"links": links})
        seconds[kind] = reduce_seconds(other, grid, 50e6)
        assert reduced_bytes(other, grid, 50e6) > 0
    assert seconds["best"] == seconds["ring"] < seconds["tree"] < seconds["server"]


@pytest.mark.parametrize(("published", "ring", "server"), [(47, 103, 3.9), (39, 97, 3.0)])
def test_what_follows_from_firecaffes_two_figures_is_what_the_page_says(published, ring, server):
    # Arithmetic takes one second of a rank; the tree's payload is what 128 / speed-up leaves.
    payload = (128 / published - 1) / reduce_time("tree", 128, 1.0, 1.0, 0.0)
    gained = {
        kind: 128 / (1 + reduce_time(kind, 128, payload, 1.0, 0.0))
        for kind in ("tree", "ring", "server")
    }
    assert gained["tree"] == pytest.approx(published)
    assert gained["ring"] == pytest.approx(ring, abs=0.5)
    assert gained["server"] == pytest.approx(server, abs=0.05)
