# SPDX-License-Identifier: Apache-2.0
"""`gossamer train` (RigL) under kill -9 every 20 to 40 s: the same bytes as undisturbed.

    python benchmarks/killed_training.py [--json] [--minutes 60] [--ranks 1|2x2] [--seed 0]

One run is left alone. Then the same run is killed at random moments and resumed until it is done,
again and again with other moments, until the minutes are over; the last one then ends in peace.
What each leaves, the artifact and the last checkpoint, is compared with what the undisturbed run
left. On a machine so busy that two kills in a row saw no new checkpoint, the next one waits for it.

A small GPT on generated text. Masks move for the first 60 % of the steps. `--ranks 2x2` starts four
processes under torchrun, data 2 x pipeline 2: replicas while masks move, then stages. Half of its
kills hit one rank (torchrun starts all of them again), the other half everything, torchrun too.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from support import options
from support.killed_run import differences, progress_of, worker_processes

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: text
      model: {{name: gpt, width: 64, heads: 4, layers: 4, context: 64}}
      steps: {steps}
      batch: 32
      schedule: {{kind: rigl, sparsity: 0.9, every: 20, end: 0.6}}
      checkpoint: {{every: {checkpoint}}}
      evaluation: {{every: {evaluation}}}
      log_every: 10
"""
MESH = "      mesh: {data: 2, pipeline: 2, heartbeat: 1, timeout: 60, start_timeout: 240}\n"
# A run that takes longer than this is ended: nothing here may wait for ever.
MOST_SECONDS = 7200
POLL_SECONDS = 0.2


def write_recipe(path, steps, every, grid):
    text = RECIPE.format(steps=steps, checkpoint=every, evaluation=max(1, steps // 6))
    path.write_text(text + (MESH if grid else ""))


@dataclass
class Run:
    """One `gossamer train` in a folder, started as often as it takes.

    Attributes:
        folder: gets `out`, `out.run` and what the processes said.
        recipe: the file; the same for all runs.
        grid: whether it is four ranks under torchrun.
        kills: moments, one entry for each: seconds since the start, what was hit, the step.
        starts: how often it was started by this script.
    """

    folder: Path
    recipe: Path
    grid: bool
    kills: list = field(default_factory=list)
    starts: int = 0
    process: subprocess.Popen | None = None

    def start(self):
        """Begin, or go on with what a killed start left."""
        words = ["-m", "gossamer", "train", str(self.recipe), "--data", "zoo:text"]
        words += ["-o", str(self.folder / "out"), "-q", *(["--resume"] if self.starts else [])]
        if self.grid:
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
                     "--max-restarts", "1000", "--monitor-interval", "0.2", *words]  # fmt: skip
        # Modes that were measured would differ from run to run, and with them last bits.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GOSSAMER_TUNE": "off",
                       "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
        with (self.folder / "said.txt").open("a") as said:
            self.process = subprocess.Popen(  # noqa: S603  (this interpreter)
                [sys.executable, *words], env=environment, stdout=said, stderr=said
            )
        self.starts += 1

    def processes(self):
        """Everything that runs now: this script's child and what torchrun started."""
        return [self.process.pid, *worker_processes(self.process.pid)]

    def kill_all(self):
        """End everything with SIGKILL, by id; torchrun first, so that it starts nothing again."""
        doomed = self.processes()
        for number in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()

    def kill_one(self, draw):
        """End one rank with SIGKILL; False if none is there."""
        ranks = worker_processes(self.process.pid)
        if not ranks:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(ranks), signal.SIGKILL)
        return True

    def said(self):
        """The end of what its processes said."""
        return (self.folder / "said.txt").read_text()[-3000:]


def wait(run, until, passed=-1):
    """The exit code, or None once the clock is past `until` and the run past the step `passed`."""
    while time.monotonic() < until or progress_of(run.folder) <= passed:
        code = run.process.poll()
        if code is not None:
            return code
        time.sleep(POLL_SECONDS)
    return None


def undisturbed(run):
    run.start()
    try:
        code = wait(run, time.monotonic() + MOST_SECONDS)
        if code != 0:
            raise SystemExit(f"the undisturbed run ended with {code}:\n{run.said()}")
    finally:
        if run.process.poll() is None:
            run.kill_all()


def disturbed(run, draw, between, end):
    """Kill and resume until it is done; no kills after `end`."""
    began = time.monotonic()
    last = began + MOST_SECONDS
    run.start()
    try:
        while True:
            moment = time.monotonic() + draw.uniform(*between)
            code = wait(run, moment if moment < end else last, _new_checkpoint_wanted(run))
            if code == 0:
                return
            if code is not None or time.monotonic() > last:
                raise SystemExit(f"a resumed run ended with {code}:\n{run.said()}")
            one = run.grid and draw.random() < 0.5
            step = progress_of(run.folder)
            hit = "one rank" if one and run.kill_one(draw) else "all"
            if hit == "all":
                run.kill_all()
                run.start()
            run.kills.append((round(time.monotonic() - began, 1), hit, step))
    finally:
        if run.process.poll() is None:
            run.kill_all()


def _new_checkpoint_wanted(run):
    """The step that must be passed before the next kill; -1 where the last two saw progress."""
    steps = [step for _, _, step in run.kills]
    return steps[-1] if len(steps) > 2 and steps[-1] == steps[-3] else -1


def rounds(arguments, folder):
    """The undisturbed run, then disturbed ones until the time is over."""
    grid = arguments.ranks == "2x2"
    recipe = folder / "recipe.yaml"
    write_recipe(recipe, arguments.steps, arguments.every, grid)
    whole = Run(_made(folder / "whole"), recipe, grid)
    began = time.monotonic()
    undisturbed(whole)
    alone = time.monotonic() - began
    options.progress(f"undisturbed: {alone:.0f} s")
    draw = random.Random(arguments.seed)  # noqa: S311  (moments)
    began, found = time.monotonic(), []
    end = began + 60 * arguments.minutes
    while time.monotonic() < end:
        run = Run(_made(folder / f"killed{len(found)}"), recipe, grid)
        start = time.monotonic()
        disturbed(run, draw, arguments.between, end)
        differing = differences(whole.folder, run.folder)
        found.append({
            "seconds": round(time.monotonic() - start),
            "kills": run.kills,
            "resumed_by_command": run.starts - 1,
            "differing": differing,
        })  # fmt: skip
        options.progress(
            f"run {len(found)}: {found[-1]['seconds']} s, {len(run.kills)} kills,"
            f" {', '.join(differing) or 'nothing'} differs"
        )
    return alone, time.monotonic() - began, found


def _made(path):
    path.mkdir()
    return path


def main():
    parser = options.parser(__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="in which runs are killed")
    parser.add_argument("--ranks", choices=["1", "2x2"], default="1")
    parser.add_argument("--steps", type=int, help="of a run (1500; 400 on a grid)")
    parser.add_argument("--every", type=int, help="steps between checkpoints (20; 10 on a grid)")
    parser.add_argument("--between", type=float, nargs=2, default=(20, 40), metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    grid = arguments.ranks == "2x2"
    arguments.steps = arguments.steps or (400 if grid else 1500)
    arguments.every = arguments.every or (10 if grid else 20)
    with tempfile.TemporaryDirectory() as folder:
        alone, seconds, found = rounds(arguments, Path(folder))
    kills = [kill for run in found for kill in run["kills"]]
    equal = sum(not run["differing"] for run in found)
    document = {
        "machine": options.machine(),
        "ranks": arguments.ranks,
        "steps": arguments.steps,
        "undisturbed_seconds": alone,
        "disturbed_seconds": seconds,
        "kills": len(kills),
        "kills_of_one_rank": sum(hit == "one rank" for _, hit, _ in kills),
        "equal": equal,
        "runs": found,
    }
    table = Table(box=None)
    for name in ("ranks", "minutes", "kills", "of one rank", "runs", "same bytes"):
        table.add_column(name, justify="right")
    shown = (arguments.ranks, f"{seconds / 60:.1f}", len(kills), document["kills_of_one_rank"],
             len(found), equal)  # fmt: skip
    table.add_row(*map(str, shown))
    options.give(arguments, document, table)
    if equal != len(found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
