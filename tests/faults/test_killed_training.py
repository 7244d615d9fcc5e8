# SPDX-License-Identifier: Apache-2.0
"""Training that is killed (F1, F2, F3) or runs out of disk (F7): resumed to the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import loop_tools
import pytest
import train_drill
from loop_tools import write_recipe

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
INTERVAL = 5


def drill(*words) -> tuple[list[dict], str]:
    run = subprocess.run(
        [sys.executable, train_drill.__file__, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(loop_tools.__file__).parent),
            "GOSSAMER_TUNE": "off",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()], run.stderr


def check_kills(states, count):
    assert len(states) == count
    assert {state["code"] for state in states} == {-9}
    assert {state["resumed"] for state in states} == {0}
    assert all(state["equal"] for state in states)
    assert all(state["notices"] == [] for state in states)
    assert all(state["temporary"] == [] and state["left"] == [] for state in states)
    assert all(state["steps"][-1] == 24 for state in states)


def test_runs_that_were_killed_end_with_the_same_bytes(tmp_path):
    write_recipe(tmp_path)
    states, _ = drill("kill", tmp_path, 1, 3)
    check_kills(states, 3)


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path):
    write_recipe(tmp_path)
    states, _ = drill("kill", tmp_path, 7, 20)
    check_kills(states, 20)
    # Forward, backward and optimizer take 3 calls a step: what is lost is less than an interval.
    for state in states[::2]:
        reached = state["call"] // 3
        assert (state["newest"] or 0) >= reached - INTERVAL - 2


def test_a_writer_killed_at_any_call_leaves_a_complete_checkpoint(tmp_path):
    states, _ = drill("phases", tmp_path)
    codes = [state["code"] for state in states]
    assert codes[-2:] == [0, 0]
    assert set(codes[:-2]) == {-9}
    assert len(codes) > 20
    assert all(state["right"] and state["notices"] == [] for state in states)
    newest = [state["newest"] for state in states]
    assert set(newest) == {3, 4}
    assert newest == sorted(newest)
    # Old ones go after the new one is in place, and two always stay.
    assert all(len(state["steps"]) >= 2 for state in states)
    assert all(state["steps"] == [2, 3] for state in states if state["newest"] == 3)
    assert states[-1]["steps"] == [3, 4]
    assert any(state["temporary"] for state in states)
    assert all(
        name.startswith("step_0") and "tmp" not in name for s in states for name in s["left"]
    )


def test_full_disk_exits_4_and_leaves_the_old_checkpoint(tmp_path):
    # Dense checkpoints are larger than compact ones, so some limit lets only the last through.
    write_recipe(tmp_path)
    states, errors = drill("limit", tmp_path)
    assert {state["code"] for state in states} == {4}
    assert {state["resumed"] for state in states} == {0}
    assert all(".tmp-" not in name for state in states for name in state["beside"])
    assert errors.count("file-size limit was reached; needed") >= 1
    assert errors.count("bytes are free") >= 1
    assert errors.count("--resume") >= len(states)
