# SPDX-License-Identifier: Apache-2.0
"""Zeros between copies beside dense growth: held-out loss and CPU seconds of short runs.

    python benchmarks/growth_zeros.py TEXT [--width 256] [--layers 1] [--opened 0.1 0.25]
        [--trunk 1500] [--steps 600] [--batch 4] [--context 128] [--rates 1e-3 2e-3 4e-3]

A byte-level GPT is trained for --trunk steps, grows to twice the width and goes on: with all
weights for --steps, or with the zeros between copies kept as compact tiles but for an opened share.
Each share gets two runs: as many steps as dense growth, and as many CPU seconds. The model that
never grew gets the seconds, too. The large model from scratch gets the seconds of trunk and dense
growth; it is pruned to the zeros of the first share, in the same tiles, from a quarter to a half of
its steps, and is compact from then on. Rates rise again after the growth and fall to zero over the
last fifth of each run. Short races of the small and of the large model, of the same compute, choose
rates on other text than is reported. Float32; all runs take turns, so that the machine is as busy
for one as for another.
"""

import copy
import math
from pathlib import Path

import torch
from rich.table import Table

import gossamer
from gossamer.training.memory import measure
from gossamer.training.modes import choose_modes
from support import growing_gpt as runs
from support import growing_steps, options

ROUNDS = 20


def arguments():
    made = options.parser("Zeros between copies beside dense growth.")
    made.add_argument("text", type=Path, help="a text file, or .xz")
    made.add_argument("--width", type=int, default=256, help="before growth")
    made.add_argument("--layers", type=int, default=1)
    made.add_argument("--opened", type=float, nargs="+", default=[0.1, 0.25])
    made.add_argument("--trunk", type=int, default=1500, help="steps before growth")
    made.add_argument("--steps", type=int, default=600, help="of dense growth")
    made.add_argument("--batch", type=int, default=4)
    made.add_argument("--context", type=int, default=128)
    made.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    made.add_argument("--race", type=int, default=300, help="steps of the race of rates")
    made.add_argument("--held", type=int, default=40_000, help="bytes to choose and to report on")
    made.set_defaults(bf16=False, decay=0.01)
    return made.parse_args()


def model_at(given, data, width, rate, steps, falls):
    """A model of that width after so many steps, at a rate that stays or falls at the end."""
    state = runs.fresh(given, (width, width // 32, given.layers), rate, seed=0)
    for group in state.optimizer.param_groups:
        group["initial_lr"] = rate
    fall = runs.DECAY * steps
    factor = lambda step: (  # noqa: E731
        min(1.0, (step + 1) / runs.WARMUP) * (min(1.0, (steps - step) / fall) if falls else 1.0)
    )
    runs.train(given, data, state, steps, factor, seed=0)
    return state


def branch(given, trunk, opened):
    """The state after growth; "all": dense, None: it did not grow."""
    state = copy.deepcopy(trunk)
    state.seconds, state.losses = 0.0, []
    if opened is None:
        return state
    asked = {} if opened == "all" else {"opened": opened}
    state.model = gossamer.grow(state.model, state.optimizer, width=2, **asked)
    if opened != "all":
        gossamer.compact(state.model, state.optimizer)
        choose_modes(state.model, given.batch * given.context)
    return state


def fastest(given, data, states, rounds=6):
    """CPU seconds of one step of each, minima of runs that take turns; on copies."""
    batch = runs.batch_of(given, data, seed=1, number=0)
    copies = [copy.deepcopy(state) for state in states]
    for made in copies:
        for group in made.optimizer.param_groups:
            group["lr"] = 0.0
    best = [math.inf] * len(copies)
    for _ in range(rounds):
        for number, made in enumerate(copies):
            best[number] = min(best[number], growing_steps.step(made.model, made.optimizer, batch))
    return best


class Run:
    """One contender: goes on from the trunk for so many steps."""

    def __init__(self, given, data, state, opened, steps):
        self.given, self.data, self.state = given, data, state
        self.opened, self.steps, self.began = opened, steps, state.step

    def factor(self, step):
        """On the rate: it rises after a growth, and falls at the end."""
        done = step - self.began
        rise = 1.0 if self.opened is None else min(1.0, (done + 1) / (0.05 * self.steps))
        return rise * min(1.0, (self.steps - done) / (runs.DECAY * self.steps))

    def go_to(self, share):
        """Train until this share of the steps is done."""
        until = self.began + round(share * self.steps)
        runs.train(self.given, self.data, self.state, until, self.factor, seed=0)


class Pruned(Run):
    """The large model from scratch, which loses tiles on the way and is compact afterwards."""

    def __init__(self, given, data, state, steps, sparsity):
        super().__init__(given, data, state, "pruned", steps)
        self.end = steps // 2
        asked = {
            "kind": "gradual", "begin": steps // 4, "end": self.end, "sparsity": sparsity,
            "every": max(1, steps // 80), "pattern": "block:16x16",
        }  # fmt: skip
        self.control = gossamer.attach(state.model, asked, state.optimizer, total_steps=steps)

    def factor(self, step):
        """On the rate: it rises at first, and falls at the end."""
        rise = min(1.0, (step + 1) / min(runs.WARMUP, 0.1 * self.steps))
        return rise * min(1.0, (self.steps - step) / (runs.DECAY * self.steps))

    def go_to(self, share):
        """Train until this share of the steps is done."""
        until, state = round(share * self.steps), self.state
        pruned = min(until, self.end + 1)
        runs.train(self.given, self.data, state, pruned, self.factor, 0, self.control)
        if until > self.end and self.control is not None:
            self.control.close()
            self.control = None
            gossamer.compact(state.model, state.optimizer)
            choose_modes(state.model, self.given.batch * self.given.context)
        runs.train(self.given, self.data, state, until, self.factor, 0)


def pruned_large(given, data, rate, seconds, trunk, like):
    """The run of the large model that takes the seconds of trunk and dense growth."""
    state = runs.fresh(given, (2 * given.width, given.width // 16, given.layers), rate, seed=0)
    for group in state.optimizer.param_groups:
        group["initial_lr"] = rate
    # Dense steps for the first half, steps like those of the first share afterwards.
    mean = (seconds["all"] + seconds[given.opened[0]]) / 2
    steps = round((trunk.step * seconds[None] + given.steps * seconds["all"]) / mean)
    return Pruned(given, data, state, steps, growing_steps.zeros_of(like))


def contenders(given, data, trunk, large_rate):
    """All runs, and the fastest step of each kind."""
    kinds = [None, "all", *given.opened]
    states = [branch(given, trunk, kind) for kind in kinds]
    seconds = dict(zip(kinds, fastest(given, data, states), strict=True))
    found = []
    for kind, state in zip(kinds, states, strict=True):
        longer = round(given.steps * seconds["all"] / seconds[kind])
        many = {None: (longer,), "all": (given.steps,)}.get(kind, (given.steps, longer))
        found += [Run(given, data, copy.deepcopy(state), kind, steps) for steps in many]
    found.append(pruned_large(given, data, large_rate, seconds, trunk, states[2].model))
    return found, seconds | {"pruned": math.nan}


def race_of(given, data, choose, width, steps):
    """Rate -> loss of a short run on the part that chooses."""
    race = {}
    for rate in given.rates:
        state = model_at(given, data, width, rate, steps, falls=True)
        race[rate] = runs.evaluate(given, state.model, choose)
        options.progress(f"width {width}, rate {rate:g}: {race[rate] / math.log(2):.4f} bits")
    return race


def main():
    given = arguments()
    torch.set_num_threads(1)
    parts = runs.parts_of(given.text)
    data, choose, report = parts["train"], *(parts[k][: given.held] for k in ("choose", "report"))
    race = race_of(given, data, choose, given.width, given.race)
    large = race_of(given, data, choose, 2 * given.width, given.race // 4)
    rate = min(race, key=race.get)
    trunk = model_at(given, data, given.width, rate, given.trunk, falls=False)
    options.progress(f"trunk: {trunk.seconds:.0f} CPU seconds")
    found, fast = contenders(given, data, trunk, min(large, key=large.get))
    for turn in range(ROUNDS):
        for run in found:
            run.go_to((turn + 1) / ROUNDS)
        options.progress(f"{turn + 1} of {ROUNDS}")
    rows = []
    for run in found:
        row = {
            "opened": run.opened, "steps": run.steps, "ms": 1000 * fast[run.opened],
            "cpu_seconds": run.state.seconds, "zeros": growing_steps.zeros_of(run.state.model),
            "bytes": measure(run.state.model, run.state.optimizer).total_bytes,
            "loss": runs.evaluate(given, run.state.model, report),
        }  # fmt: skip
        rows.append(row)
    show(given, rows, trunk.seconds, {"small": race, "large": large})


def show(given, rows, before, race):
    dense = next(row for row in rows if row["opened"] == "all")
    table = Table(title=f"Width {given.width} to {2 * given.width}, {given.trunk} steps before")
    heads = ("opened", "zeros", "steps", "ms", "CPU s", "of dense", "with trunk", "bits", "MiB")
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        taken, whole = row["cpu_seconds"], dense["cpu_seconds"]
        own = 0.0 if row["opened"] == "pruned" else before
        milliseconds = "" if math.isnan(row["ms"]) else f"{row['ms']:.1f}"
        table.add_row(
            "never grown" if row["opened"] is None else str(row["opened"]), f"{row['zeros']:.0%}",
            str(row["steps"]), milliseconds, f"{taken:.0f}", f"{taken / whole:.2f}",
            f"{(own + taken) / (before + whole):.2f}", f"{row['loss'] / math.log(2):.4f}",
            f"{row['bytes'] / 2**20:.1f}",
        )  # fmt: skip
    document = {"machine": options.machine(), "race": race, "trunk_seconds": before, "runs": rows}
    options.give(given, document, table)


if __name__ == "__main__":
    main()
