# SPDX-License-Identifier: Apache-2.0
"""`gossamer train` on several processes of this machine, which tests kill, stop and count."""

import os
import subprocess
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from grid_ranks import free_port
from warm_processes import Surroundings, end, fork_server, write_to

from gossamer.cli.main import main

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


def train_words(folder: Path, data: str | None = None) -> list[str]:
    """`gossamer train` of the recipe in `folder`, behind the program."""
    recipe = folder / "recipe.yaml"
    data = data or "zoo:" + recipe.read_text().partition("task: ")[2].split()[0].strip(",")
    return ["train", str(recipe), "--data", data, "-o", str(folder / "out")]


class Rank:
    """A process that was started, as tests ask for it."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("gossamer train", seconds)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()


@dataclass
class Run:
    """Processes that were started together."""

    folder: Path
    ranks: list[Rank]

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
                rank.wait(60)


def launch(
    folder: Path,
    world: int,
    *extra: str,
    port: int | None = None,
    data: str | None = None,
    **environment,
) -> Run:
    """`gossamer train` of the recipe in `folder`, once per rank, as torchrun would start it.

    Imports are most of a short run, so ranks begin behind them; `test_cli_train.py` and torchrun
    in `test_grid_faults.py` begin with the interpreter.
    """
    ranks = []
    common = {
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port or free_port()),
        "WORLD_SIZE": str(world),
        "GOSSAMER_TUNE": "off",
    }
    words = [*train_words(folder, data), *extra]
    for rank in range(world):
        given = Surroundings.here(**common, RANK=str(rank), LOCAL_RANK=str(rank), **environment)
        process = fork_server().Process(
            target=_train, args=(words, given, str(folder / f"stderr{rank}"))
        )
        process.start()
        ranks.append(Rank(process))
    return Run(folder, ranks)


def _train(words: list[str], given: Surroundings, errors: str) -> None:
    write_to(os.devnull, errors)
    given.enter()
    end(main(words))
