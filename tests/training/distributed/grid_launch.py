# SPDX-License-Identifier: Apache-2.0
"""`gossamer train` on several processes of this machine, which tests kill, stop and count."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from grid_ranks import free_port

RECIPE = """\
gossamer: 1
stages:
  - train:
      {model}
      steps: {steps}
      batch: 32
      schedule: {{kind: gradual, sparsity: 0.8, begin: 2, end: {settled}, every: 3}}
      checkpoint: {{every: 5}}
      evaluation: {{every: 10}}
      log_every: 1
      mesh: {{{mesh}, heartbeat: 0.5, timeout: {timeout}, start_timeout: 240}}
"""
IMAGES = "task: images\n      model: {name: mlp, width: 16, layers: 2}"
# A chain of layers, so that it can be cut into stages, which happens once masks are final.
TEXT = "task: text\n      model: {name: gpt, width: 16, heads: 2, layers: 2, context: 8}"


def write_recipe(folder: Path, mesh: str, *, steps: int = 24, timeout: float = 8) -> None:
    model, settled = (TEXT, 5) if "pipeline" in mesh else (IMAGES, 14)
    content = {"model": model, "settled": settled, "mesh": mesh, "steps": steps}
    (folder / "recipe.yaml").write_text(RECIPE.format(**content, timeout=timeout))


def train_command(folder: Path, data: str | None = None) -> list[str]:
    """`gossamer train` of the recipe in `folder`, behind the interpreter."""
    recipe = folder / "recipe.yaml"
    data = data or "zoo:" + recipe.read_text().partition("task: ")[2].split()[0].strip(",")
    return ["-m", "gossamer", "train", str(recipe), "--data", data, "-o", str(folder / "out")]


@dataclass
class Run:
    """Processes that were started together."""

    folder: Path
    ranks: list[subprocess.Popen]

    def metrics(self) -> str:
        path = self.folder / "out.run" / "metrics.jsonl"
        return path.read_text() if path.exists() else ""

    def wait_for(self, text: str, seconds: float = 240) -> None:
        """Until the metrics hold `text`."""
        end = time.monotonic() + seconds
        while text not in self.metrics():
            assert time.monotonic() < end, f"{text!r} did not come: {self.metrics()[-300:]}"
            assert all(rank.poll() is None for rank in self.ranks), self.errors()
            time.sleep(0.01)

    def ended(self, seconds: float = 240) -> list[int]:
        """Exit codes; nobody is left over."""
        end = time.monotonic() + seconds
        try:
            return [rank.wait(max(0.1, end - time.monotonic())) for rank in self.ranks]
        finally:
            self.clean_up()

    def errors(self) -> str:
        """What all ranks wrote to stderr."""
        return "".join((self.folder / f"stderr{i}").read_text() for i in range(len(self.ranks)))

    def clean_up(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()


def launch(
    folder: Path,
    world: int,
    *extra: str,
    port: int | None = None,
    data: str | None = None,
    **environment,
) -> Run:
    """`gossamer train` of the recipe in `folder`, once per rank, as torchrun would start it."""
    ranks = []
    common = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port or free_port()),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        "GOSSAMER_TUNE": "off",
    }
    command = [sys.executable, *train_command(folder, data), *extra]
    for rank in range(world):
        own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment}
        with (folder / f"stderr{rank}").open("w") as errors:
            ranks.append(
                subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, stderr=errors)
            )
    return Run(folder, ranks)
