# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, stop or are asked to stop: one cause, exit 5 in time, the same result."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from grid_launch import launch, train_words, write_recipe

TIMEOUT = 8
# Noticing, naming and ending, on a machine that is busy with other things.
BOUND = TIMEOUT + 52
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def artifact(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "out").iterdir()}


def undisturbed(folder: Path, mesh: str, world: int) -> dict[str, bytes]:
    folder.mkdir()
    write_recipe(folder, mesh, timeout=TIMEOUT)
    run = launch(folder, world)
    assert run.ended() == [0] * world, run.errors()
    return artifact(folder)


def kill_and_resume(folder: Path, mesh: str, world: int, victim: int, moment: str) -> None:
    """Kill a rank once `moment` is in the metrics; the others end, a second run finishes."""
    folder.mkdir()
    write_recipe(folder, mesh, timeout=TIMEOUT)
    run = launch(folder, world)
    try:
        run.wait_for(moment)
        run.ranks[victim].kill()
        began = time.monotonic()
        codes = run.ended(BOUND)
    finally:
        run.clean_up()
    assert time.monotonic() - began < BOUND
    assert codes[victim] == -signal.SIGKILL
    assert all(code == 5 for rank, code in enumerate(codes) if rank != victim), codes
    told = [line for line in run.errors().splitlines() if line.startswith("gossamer: ")]
    assert len(told) == 1
    assert f"rank {victim}" in told[0]
    assert "step" in told[0]
    again = launch(folder, world, "--resume")
    assert again.ended() == [0] * world, again.errors()


def test_a_killed_rank_ends_all_and_a_resumed_run_gives_the_same_bytes(tmp_path):
    expected = undisturbed(tmp_path / "whole", "data: 2", 2)
    for victim, moment in ((1, '"step": 9'), (0, '"step": 17')):
        folder = tmp_path / f"killed{victim}"
        kill_and_resume(folder, "data: 2", 2, victim, moment)
        assert artifact(folder) == expected


@pytest.mark.parametrize(
    ("mesh", "world"),
    [
        ("data: 2", 2),
        ("shard: 2", 2),
        ("data: 2, shard: 2", 4),
        ("pipeline: 2", 2),
        ("data: 2, pipeline: 2", 4),
    ],
)
def test_kills_at_twenty_random_moments(tmp_path, mesh, world):
    """Four on each grid; moments are lines of the metrics, drawn anew in every run of the tests."""
    seed = random.randrange(2**32)  # noqa: S311  (moments)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311
    expected = undisturbed(tmp_path / "whole", mesh, world)
    for number in range(4):
        victim, step = draw.randrange(world), draw.randrange(1, 23)
        print(f"run {number}: {mesh}, rank {victim} killed after step {step}", flush=True)
        folder = tmp_path / f"killed{number}"
        kill_and_resume(folder, mesh, world, victim, f'"step": {step}')
        assert artifact(folder) == expected


@pytest.mark.parametrize("mesh", ["data: 2", "pipeline: 2"])
def test_a_stopped_rank_ends_the_others_within_the_bound(tmp_path, mesh):
    write_recipe(tmp_path, mesh, steps=400, timeout=TIMEOUT)
    run = launch(tmp_path, 2)
    try:
        run.wait_for('"step": 9')
        run.ranks[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert run.ranks[0].wait(BOUND) == 5
        assert time.monotonic() - began < BOUND
        assert "rank 1 stopped answering" in (tmp_path / "stderr0").read_text()
        # It notices by itself when it goes on.
        run.ranks[1].send_signal(signal.SIGCONT)
        assert run.ranks[1].wait(BOUND) == 5
    finally:
        run.clean_up()


def test_a_short_pause_is_no_failure(tmp_path):
    write_recipe(tmp_path, "data: 2", timeout=60)
    run = launch(tmp_path, 2)
    try:
        run.wait_for('"step": 5')
        run.ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(3)
        run.ranks[1].send_signal(signal.SIGCONT)
        assert run.ended() == [0, 0], run.errors()
    finally:
        run.clean_up()


def test_a_signal_to_one_rank_stops_all_at_one_step_and_the_run_goes_on(tmp_path):
    expected = undisturbed(tmp_path / "whole", "data: 2", 2)
    folder = tmp_path / "stopped"
    folder.mkdir()
    write_recipe(folder, "data: 2", timeout=TIMEOUT)
    run = launch(folder, 2)
    try:
        run.wait_for('"step": 7')
        run.ranks[1].send_signal(signal.SIGTERM)
        assert run.ended() == [143, 143], run.errors()
    finally:
        run.clean_up()
    assert run.errors().count("gossamer: stopped after step") == 1
    again = launch(folder, 2, "--resume")
    assert again.ended() == [0, 0], again.errors()
    assert artifact(folder) == expected


@pytest.mark.parametrize("mesh", ["data: 2", "pipeline: 2"])
def test_torchrun_starts_killed_ranks_again(tmp_path, mesh):
    expected = undisturbed(tmp_path / "whole", mesh, 2)
    folder = tmp_path / "elastic"
    folder.mkdir()
    write_recipe(folder, mesh, timeout=TIMEOUT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GOSSAMER_TUNE": "off",
                   "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", "2", "--max-restarts", "3",
               "-m", "gossamer", *train_words(folder)]  # fmt: skip
    with (folder / "stderr").open("w") as errors:
        launcher = subprocess.Popen(command, env=environment, stderr=errors)
    try:
        metrics = folder / "out.run" / "metrics.jsonl"
        end = time.monotonic() + 240
        while not metrics.exists() or '"step": 11' not in metrics.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(worker_of(launcher.pid, rank=1), signal.SIGKILL)
        assert launcher.wait(240) == 0, (folder / "stderr").read_text()
    finally:
        # Not killed: torchrun then would not end its workers.
        launcher.terminate()
        launcher.wait(120)
    assert artifact(folder) == expected


def worker_of(launcher: int, rank: int) -> int:
    """The process that torchrun started for a rank."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (path / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent == launcher and f"RANK={rank}".encode() in environment:
            return int(path.name)
    raise AssertionError(f"no worker of rank {rank}")
