# SPDX-License-Identifier: Apache-2.0
"""`gossamer train` with tables on several processes, killed and resumed: the same bytes."""

from pathlib import Path

import pytest
from grid_launch import launch

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: text
      steps: 40
      batch: 8
      optimizer: {name: sgd, lr: 0.5, weight_decay: 0.0, momentum: 0.0}
      checkpoint: {every: 5}
      log_every: 1
      mesh: {data: 2, tables: {wire: int8, rounding: stochastic}, heartbeat: 0.5, timeout: 20}
"""


def trained(folder: Path, *extra: str):
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    model = ("--model", "table_model:build_next_token")
    return launch(folder, 2, *model, *extra, PYTHONPATH=str(Path(__file__).parent))


@pytest.mark.timeout(600)
def test_a_killed_run_gives_the_same_bytes(tmp_path):
    whole = trained(tmp_path / "whole")
    assert whole.ended() == [0, 0], whole.errors()
    killed = trained(tmp_path / "killed")
    killed.wait_for('"step": 12')
    killed.clean_up()
    resumed = trained(tmp_path / "killed", "--resume")
    assert resumed.ended() == [0, 0], resumed.errors()
    names = sorted(path.name for path in (tmp_path / "whole" / "out").glob("*.safetensors"))
    assert names
    for name in names:
        one, other = ((tmp_path / run / "out" / name).read_bytes() for run in ("whole", "killed"))
        assert one == other
    assert '"tables"' in whole.metrics()
