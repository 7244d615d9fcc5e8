# SPDX-License-Identifier: Apache-2.0
"""`gossamer train` with experts on several ranks, killed and resumed: the same bytes.

A run that goes on with another grid gives what that grid gives from there, whoever wrote the
checkpoint: so two runs that are killed at one checkpoint and go on with one grid are equal, too.
"""

import shutil
from pathlib import Path

import pytest
from grid_launch import launch

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: text
      model:
        name: gpt
        width: 16
        heads: 2
        layers: 2
        context: 16
        experts: {{count: 4, top_k: 1, capacity: 1.25, balance: bias}}
      steps: 40
      batch: 8
      rate: {{shape: constant, warmup: 0}}
      checkpoint: {{every: 10, keep: 10}}
      evaluation: {{every: 0}}
      log_every: 1
      mesh: {{{mesh}, heartbeat: 0.5, timeout: 60}}
"""
TWO, FOUR = "expert: 2", "data: 2, expert: 2"


def trained(folder: Path, mesh: str, ranks: int, *extra: str):
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(RECIPE.format(mesh=mesh))
    return launch(folder, ranks, *extra)


def finished(run):
    codes = run.ended()
    assert set(codes) == {0}, run.errors()


def files(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in (folder / "out").glob("*.safetensors")}
    assert found
    return found


@pytest.mark.timeout(900)
def test_a_killed_run_gives_the_same_bytes_also_on_another_grid(tmp_path):
    whole, killed, moved = (tmp_path / name for name in ("whole", "killed", "moved"))
    finished(trained(whole, TWO, 2))
    run = trained(killed, TWO, 2)
    run.wait_for('"step": 25')
    run.clean_up()
    shutil.copytree(killed, moved)
    finished(trained(killed, TWO, 2, "--resume"))
    assert files(killed) == files(whole)
    # On four ranks from the checkpoint of step 20, twice: once killed on the way again.
    again = tmp_path / "again"
    shutil.copytree(moved, again)
    finished(trained(moved, FOUR, 4, "--resume"))
    run = trained(again, FOUR, 4, "--resume")
    run.wait_for('"step": 33')
    run.clean_up()
    finished(trained(again, FOUR, 4, "--resume"))
    assert files(again) == files(moved)
    assert '"tokens"' in run.metrics()
