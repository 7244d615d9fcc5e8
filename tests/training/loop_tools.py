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


def request(text: str = RECIPE, *, data: str | None = "zoo:images", **settings):
    """What `gossamer train` would be asked for."""
    from gossamer.recipes.loader import parse_recipe
    from gossamer.runs.training import TrainRequest

    return TrainRequest(recipe=parse_recipe(text.encode(), "recipe.yaml"), data=data, **settings)


def train(
    folder: Path,
    text: str = RECIPE,
    *,
    stop_after: int | None = None,
    notes: list[str] | None = None,
    **settings,
):
    """Run in this process; with `stop_after`, die there as a kill would, and return None."""
    from gossamer.runs.training.stage import run_training
    from gossamer.training.run_files import RunFolder

    class Killed(Exception):
        pass

    def progress(step: int, steps: int) -> None:
        if step == stop_after:
            raise Killed

    notes = [] if notes is None else notes
    wanted = request(text, **settings)
    run = RunFolder(folder)
    try:
        with run.opened(resume=wanted.resume):
            trained = run_training(wanted, run, say=notes.append, progress=progress)
    except Killed:
        return None
    return trained


def train_recipe(folder: Path, recipe, data: str):
    """Run a loaded recipe in this process."""
    from gossamer.runs.training import TrainRequest
    from gossamer.runs.training.stage import run_training
    from gossamer.training.run_files import RunFolder

    run = RunFolder(folder)
    with run.opened(resume=False):
        return run_training(TrainRequest(recipe, data), run, say=str)


def state_of(trained) -> dict:
    """Everything that a further step would depend on, as tensors and numbers."""
    state = trained.loop.state()
    for clocked in ("metrics_bytes", "seconds"):
        state["counters"].pop(clocked)
    return state


def same(one, two) -> bool:
    """Equal to the last bit, NaN included."""
    import torch

    if isinstance(one, torch.Tensor):
        raw = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, two)]
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(*raw)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two
