# SPDX-License-Identifier: Apache-2.0
"""A tiny run, quick enough to be killed twenty times."""

from pathlib import Path

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: images
      model: {name: mlp, width: 16, layers: 2}
      steps: 24
      batch: 32
      schedule: {kind: gradual, sparsity: 0.8, begin: 2, end: 14, every: 3}
      checkpoint: {every: 5}
      evaluation: {every: 10}
      log_every: 4
      compaction: auto
"""


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def arguments(folder: Path, *extra: str, out: str = "out") -> list[str]:
    """The command line of the tiny run."""
    recipe = str(folder / "recipe.yaml")
    return ["train", recipe, "--data", "zoo:images", "-o", str(folder / out), "-q", *extra]


def artifact_bytes(path: Path) -> dict[str, bytes]:
    """Every file of an artifact."""
    return {file.name: file.read_bytes() for file in path.iterdir()}
