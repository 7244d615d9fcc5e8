# SPDX-License-Identifier: Apache-2.0
"""Two processes share the nodes or pairs of a batch and take the steps of one."""

import pytest
import torch
from grid_launch import launch

import gossamer

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: graph
      model: {model}
      data: {{graph: {graph}}}
      steps: 12
      batch: 32
      clip: null
      optimizer: {{name: sgd, lr: 0.5, weight_decay: 0.0}}
      rate: {{shape: constant, warmup: 0.0}}
      compaction: off
      checkpoint: {{every: 6}}
      evaluation: {{every: 6}}
      log_every: 1
"""
MESH = "      mesh: {data: 2, timeout: 60, start_timeout: 240}\n"
# With all neighbours drawn, a node sees the same whichever nodes share its batch.
KINDS = {
    "nodes": ("{name: sage, width: 8, dropout: 0.0}", "{fanouts: [999, 999]}"),
    "links": ("{name: lightgcn, width: 8}", "{predict: links}"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_take_the_steps_of_one(tmp_path, kind):
    model, graph = KINDS[kind]
    text = RECIPE.format(model=model, graph=graph)
    alone, grid = tmp_path / "alone", tmp_path / "grid"
    for folder, mesh in ((alone, ""), (grid, MESH)):
        folder.mkdir()
        (folder / "recipe.yaml").write_text(text + mesh)
    for folder, world in ((alone, 1), (grid, 2)):
        run = launch(folder, world)
        assert run.ended() == [0] * world, run.errors()
    first, second = (gossamer.load(folder / "out").state_dict() for folder in (alone, grid))
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-5)
