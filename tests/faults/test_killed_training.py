# SPDX-License-Identifier: Apache-2.0
"""Training that is killed (F1, F2, F3), runs out of disk (F7) or of memory (F25)."""

import json
import os
import re
from pathlib import Path

import loop_tools
import pytest
import train_drill
from warm_processes import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
INTERVAL = 5


def run_drills(folder: Path, *drills: str) -> dict[str, tuple[list[dict], str]]:
    """Name -> its lines and its messages; all in one process, because imports take longest."""
    helpers = str(Path(loop_tools.__file__).parent)
    run = run_script(train_drill.__file__, folder, *drills, PYTHONPATH=helpers, GOSSAMER_TUNE="off")
    assert run.returncode == 0, run.stderr
    lines: dict[str, list[dict]] = {}
    for line in map(json.loads, run.stdout.splitlines()):
        if "drill" in line:
            lines[line["drill"]] = []
        else:
            list(lines.values())[-1].append(line)
    errors = re.split(r"^drill (\w+)\n", run.stderr, flags=re.M)
    told = dict(zip(errors[1::2], errors[2::2], strict=True))
    return {name: (found, told[name]) for name, found in lines.items()}


@pytest.fixture(scope="module")
def drills(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drills")
    return run_drills(folder, "kill:1:3", "phases", "limit")


def check_kills(states, count):
    assert len(states) == count
    assert {state["code"] for state in states} == {-9}
    assert {state["resumed"] for state in states} == {0}
    assert all(state["equal"] for state in states)
    assert all(state["notices"] == [] for state in states)
    assert all(state["temporary"] == [] and state["left"] == [] for state in states)
    assert all(state["steps"][-1] == 24 for state in states)


def test_runs_that_were_killed_end_with_the_same_bytes(drills):
    states, _ = drills["kill"]
    check_kills(states, 3)


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path):
    states, _ = run_drills(tmp_path, "kill:7:20")["kill"]
    check_kills(states, 20)
    # Forward, backward and optimizer take 3 calls a step: what is lost is less than an interval.
    for state in states[::2]:
        reached = state["call"] // 3
        assert (state["newest"] or 0) >= reached - INTERVAL - 2


def test_a_writer_killed_at_any_call_leaves_a_complete_checkpoint(drills):
    states, _ = drills["phases"]
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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_out_of_memory_exits_4_with_size_and_phase(tmp_path):
    states, errors = run_drills(tmp_path, "memory")["memory"]
    assert [state["code"] for state in states] == [4, 4], errors
    assert re.search(r"building the model: out of memory, an allocation of \d+ bytes", errors)
    assert re.search(r"training after step 0: out of memory, an allocation of \d+ bytes", errors)
    assert "Traceback" not in errors


def test_full_disk_exits_4_and_leaves_the_old_checkpoint(drills):
    states, errors = drills["limit"]
    assert {state["code"] for state in states} == {4}
    assert {state["resumed"] for state in states} == {0}
    assert all(".tmp-" not in name for state in states for name in state["beside"])
    assert errors.count("file-size limit was reached; needed") >= 1
    assert errors.count("bytes are free") >= 1
    assert errors.count("--resume") >= len(states)
