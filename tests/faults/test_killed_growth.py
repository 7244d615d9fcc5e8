# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed while their model grows end with the same bytes."""

import os
import random
import signal
from pathlib import Path

import pytest
from grid_launch import launch

import gossamer
from gossamer.training.growth import slots, state
from gossamer.training.loop import Loop

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
GROW = "grow: [{at: 3, depth: 2, rewarm: 2}, {at: 6, width: 2, opened: 0.3}]"
RECIPE = f"""\
gossamer: 1
stages:
  - train:
      task: text
      model: {{name: gpt, width: 16, heads: 2, layers: 2, context: 8}}
      steps: 10
      batch: 32
      {GROW}
      checkpoint: {{every: 2}}
      evaluation: {{every: 5}}
      log_every: 1
"""
SCHEDULE = "      schedule: {kind: reopen, begin: 7, end: 9, every: 1, sparsity: 0.1, drop: 0.1}\n"
# What is counted: every tensor that grows, moments that move, steps and checkpoints.
COUNTED = (
    (slots, "grown_tensor"),
    (state, "grown_state"),
    (Loop, "_one_step"),
    (Loop, "save"),
    (Loop, "_become_larger"),
)


def artifact(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "out").iterdir()}


def count_calls(at: int | None) -> list[int]:
    """Count calls of what is counted; the process kills itself in call `at`."""
    calls = [0]
    for home, name in COUNTED:
        original = getattr(home, name)

        def counted(*args, _original=original, **kwargs):
            calls[0] += 1
            if calls[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return _original(*args, **kwargs)

        setattr(home, name, counted)
    return calls


def forked(folder: Path, at: int | None, recipe: str, *, resume: bool = False) -> tuple[int, int]:
    """A run in a child: how it ended, and how many calls were counted."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.environ["GOSSAMER_TUNE"] = "off"
            calls = count_calls(at)
            (folder / "recipe.yaml").write_text(recipe)
            gossamer.train(folder / "recipe.yaml", "zoo:text", out=folder / "out", resume=resume)
            os.write(writer, str(calls[0]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as lines:
        return os.waitstatus_to_exitcode(status), int(lines.read() or 0)


def drill(tmp_path: Path, number: int, recipe: str = RECIPE) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    code, calls = forked(whole, None, recipe)
    assert code == 0
    expected = artifact(whole)
    for index in range(number):
        at = 1 + round(index * (calls - 1) / (number - 1))
        folder = tmp_path / f"killed{at}"
        folder.mkdir()
        assert forked(folder, at, recipe)[0] == -signal.SIGKILL
        assert forked(folder, None, recipe, resume=True)[0] == 0, at
        assert artifact(folder) == expected, at


def test_killed_while_growing(tmp_path):
    drill(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("schedule", ["", SCHEDULE], ids=["grown", "reopened"])
def test_killed_at_twenty_moments_around_growth(schedule, tmp_path):
    drill(tmp_path, 20, RECIPE + schedule)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_grid_killed_at_twenty_moments_around_growth(tmp_path):
    """Two replicas of two stages; ranks and lines of the metrics are drawn anew in every run.

    GOSSAMER_GROWTH_KILLS says how many moments, if a machine has no time for twenty.
    """
    mesh = "mesh: {data: 2, pipeline: 2, heartbeat: 0.5, timeout: 8, start_timeout: 240}"
    seed = random.randrange(2**32)  # noqa: S311  (moments)
    print(f"seed {seed}")
    draw = random.Random(seed)  # noqa: S311

    def folder_of(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "recipe.yaml").write_text(f"{RECIPE}      {mesh}\n")
        return folder

    whole = folder_of("whole")
    run = launch(whole, 4)
    assert run.ended() == [0] * 4, run.errors()
    for index in range(int(os.environ.get("GOSSAMER_GROWTH_KILLS", "20"))):
        folder, moment = folder_of(f"killed{index}"), draw.randint(1, 9)
        run = launch(folder, 4)
        try:
            run.wait_for(f'"step": {moment}', 900)
            run.ranks[draw.randrange(4)].kill()
            run.ended(60)
        finally:
            run.clean_up()
        again = launch(folder, 4, "--resume")
        assert again.ended() == [0] * 4, again.errors()
        assert artifact(folder) == artifact(whole), moment
