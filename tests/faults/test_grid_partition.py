# SPDX-License-Identifier: Apache-2.0
"""A cable that is cut in the middle of a run: both sides end in time, and say so."""

import sys
import time

import pytest
from grid_launch import train_words, write_recipe

from gossamer.testing import Cluster, why_no_namespaces

TIMEOUT = 8
# Noticing, naming and ending, on a machine that is busy with other things.
BOUND = TIMEOUT + 52
pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("mesh", "world", "apart"),
    [
        ("data: 2", 2, [1]),
        ("pipeline: 2", 2, [0]),
        ("data: 2, pipeline: 2", 4, [3]),
    ],
)
def test_a_partition_ends_both_sides(tmp_path, mesh, world, apart):
    reason = why_no_namespaces()
    if reason:
        pytest.skip(reason)
    write_recipe(tmp_path, mesh, steps=100_000, timeout=TIMEOUT)
    metrics = tmp_path / "out.run" / "metrics.jsonl"
    with Cluster(world, isolation="namespaces") as cluster:
        ranks = cluster.start_ranks(
            [sys.executable, "-m", "gossamer", *train_words(tmp_path)],
            environment={"GOSSAMER_TUNE": "off"},
        )
        end = time.monotonic() + 300
        while not metrics.exists() or '"step": 9' not in metrics.read_text():
            assert time.monotonic() < end
            assert all(rank.running for rank in ranks), [rank.result(1).errors for rank in ranks]
            time.sleep(0.05)
        cluster.partition(apart)
        cut_at = time.monotonic()
        ended = [rank.result(max(0.1, cut_at + BOUND - time.monotonic())) for rank in ranks]
        seconds = time.monotonic() - cut_at
    assert [one.exit_code for one in ended] == [5] * world, [one.errors for one in ended]
    print(f"{mesh}: all ranks gone {seconds:.1f} s after the cut")
    sides = [[rank for rank in range(world) if (rank in apart) == is_apart] for is_apart in (0, 1)]
    for side, others in (sides, sides[::-1]):
        told = [line for rank in side for line in ended[rank].errors.splitlines()
                if line.startswith("gossamer: ")]  # fmt: skip
        # The side with the store knows who is silent, the other one that the store is.
        if 0 in side:
            assert len(told) == 1, told
            assert any(f"rank {rank} stopped answering" in told[0] for rank in others), told
        else:
            assert len(told) == len(side), told
            assert all("cannot reach the store" in line for line in told), told
        assert all("step" in line for line in told)
        assert not any("Traceback" in ended[rank].errors for rank in side)
