# SPDX-License-Identifier: Apache-2.0
"""Growth beside training from scratch, stacking and others: held-out loss at equal compute.

    python benchmarks/growth.py TEXT [--width 144] [--layers 4] [--small 1] [--steps 4500]
        [--batch 16] [--context 128] [--rates 1.5e-3 3e-3 6e-3] [--race 0.15] [--decay 0.1]
        [--budgets 1 2] [--less 0.25] [--seeds 0 1] [--arms ...] [--fp32] [--log FILE]
        [--trunks FOLDER] [--json FILE]

A byte-level GPT on TEXT. Of its end, one part chooses learning rates and says at which budget the
large model beats the small one (column "chooses"); the other is reported and nothing is chosen on
it. The budget B is the compute (6 N D, N without tables) of the large model over --steps; every arm
takes as many steps as a budget buys, under a warm-up, stable, decay schedule over its own steps,
and grows once 15 % of its compute is spent, if the arm does not say otherwise. Rates race over a
part of B (--race), one race for each size before growth; a model that has grown goes on at the rate
that won for the large model. As long as the largest rate wins, its double races, too. Growing arms
run with less compute, too (--less): the saving is read off where the loss of an arm crosses that of
the large model from scratch. A small model that never grows gets the same compute: below it a table
of growth shows nothing. The control of an arm is the model that it begins as. Runs share what they
have in common, and go on where they were interrupted (support/growing_gpt.py).

    python benchmarks/growth.py --steps-only [--widths 512 1024] [--factors 2 4] [--opened 0 0.25]

times a training step of a grown model: dense, and with zeros between copies kept as compact tiles.

    python benchmarks/growth.py --lead --log FILE

says of every run in FILE how far its training loss is ahead of the large model from scratch, along
the way: the compute that scratch takes to that loss, less its own, in parts of the budget.

With --log, runs that are in FILE already are not done again, and with --trunks what runs share is
kept; `jobs` says what comes first.
"""

import itertools
import json
import math
import tempfile
from pathlib import Path

import torch
from rich.table import Table

from gossamer.nn.prunable import active_parameters
from gossamer.report.charts import Curve
from gossamer.report.charts.layer_charts import curve_chart
from gossamer.report.page import render_svg
from gossamer.zoo import GPT
from support import growing_gpt as runs
from support import growing_steps, options

# Share of the compute that is spent before the growth.
SPENT = 0.15
# Arm -> layers or width to begin with, and how it grows. Arms with equal sizes before growth share
# one race of rates. "spent": shares of the compute before the growths; "through": layers between.
ARMS = {
    "large from scratch": {},
    "small, never grown": {"small": True},
    "half the layers, never grown": {"half": True},
    "small, out0": {"small": True, "grow": {}},
    "small, stack": {"small": True, "grow": {"mode": "stack"}},
    "small, out0, in two growths": {
        "small": True,
        "grow": {},
        "through": True,
        "spent": (0.08, 0.3),
    },
    "small, out0, late": {"small": True, "grow": {}, "spent": (0.5,)},
    "half the layers, out0": {"half": True, "grow": {}, "spent": (0.3,)},
    "small, random": {"small": True, "grow": {"mode": "random"}},
    "small, out0, no optimizer state": {"small": True, "grow": {"state": "reset"}},
    "small, out0, no re-warm-up": {"small": True, "grow": {}, "rewarm": 0.0},
    "small, learned": {"small": True, "grow": {}, "learned": 0.015},
    "half the width, noise": {"narrow": 2, "grow": {}},
    "half the width, no breaker": {"narrow": 2, "grow": {"symmetry": "none"}},
    "half the width, uniform copies": {"narrow": 2, "grow": {"blocks": "uniform"}},
    "half the width, 0.1 opened": {"narrow": 2, "grow": {"opened": 0.1}},
    "half the width, 0.1 opened, then 0.5": {
        "narrow": 2,
        "grow": {"opened": 0.1},
        "reopen": (0.55, 0.75),
    },
    "a quarter of the width, 90 % zeros": {
        "narrow": 4,
        "grow": {"opened": 0.0},
        "reopen": (0.25, 0.1),
    },
    "a third of the width, never grown": {"narrow": 3},
}
MAIN = ("large from scratch", "small, never grown", "small, out0", "small, stack")
BEST = "small, out0"


def jobs(given):
    """(arm, budget, seed), the most telling ones first."""
    main = [arm for arm in MAIN if arm in given.arms]
    grows = [arm for arm in main if "grow" in ARMS[arm]]
    once = [arm for arm in given.arms if arm not in MAIN]
    first, *others = given.budgets
    wanted = []
    for seed in given.seeds:
        wanted += [(arm, first, seed) for arm in main]
        wanted += [(arm, first * (1 - share), seed) for share in given.less for arm in grows]
    wanted += [(arm, first, given.seeds[0]) for arm in once]
    wanted += [(arm, budget, seed) for budget in others for seed in given.seeds for arm in main]
    return wanted


def arguments():
    made = options.parser("Growth beside training from scratch.")
    made.add_argument("text", type=Path, nargs="?", help="a text file, or .xz")
    made.add_argument("--width", type=int, default=144)
    made.add_argument("--layers", type=int, default=4)
    made.add_argument("--small", type=int, default=1, help="layers of the small model")
    made.add_argument("--heads", type=int, default=4)
    made.add_argument("--steps", type=int, default=4500, help="of the large model at budget B")
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--context", type=int, default=128)
    made.add_argument("--rates", type=float, nargs="+", default=[1.5e-3, 3e-3, 6e-3])
    made.add_argument("--race", type=float, default=0.15, help="part of the budget")
    made.add_argument("--decay", type=float, default=0.1, help="of weights, by AdamW")
    made.add_argument("--budgets", type=float, nargs="+", default=[1.0, 2.0], help="in B")
    made.add_argument("--less", type=float, nargs="*", default=[0.25], help="saved at the first")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    made.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    made.add_argument("--fp32", dest="bf16", action="store_false", help="no bfloat16 products")
    made.add_argument("--log", type=Path, help="finished runs, as JSON lines")
    made.add_argument("--trunks", type=Path, help="where shared beginnings are kept")
    made.add_argument("--log-only", action="store_true", help="show the log, run nothing")
    made.add_argument("--lead", action="store_true", help="how far the runs of a log are ahead")
    made.add_argument("--svg", type=Path, help="draw the loss of the best operator over compute")
    made.add_argument("--steps-only", action="store_true", help="times of grown steps instead")
    made.add_argument("--widths", type=int, nargs="+", default=[256, 512, 1024])
    made.add_argument("--factors", type=int, nargs="+", default=[2, 4])
    made.add_argument("--opened", type=float, nargs="+", default=[0.0, 0.1, 0.25])
    made.add_argument("--rounds", type=int, default=5)
    given = made.parse_args()
    if given.text is None and not (given.steps_only or given.log_only or given.lead):
        made.error("give a text, --log-only, --lead or --steps-only")
    return given


def sizes_of(given, arm):
    """Width, heads and layers before growth."""
    settings = ARMS[arm]
    narrow, layers = settings.get("narrow", 1), given.layers
    if "half" in settings:
        layers = given.layers // 2
    if "small" in settings:
        layers = given.small
    heads = given.heads // narrow if given.heads % narrow == 0 else given.heads
    return given.width // narrow // heads * heads, heads, layers


def active(given, width, heads, layers):
    with torch.device("meta"):
        return active_parameters(
            GPT(256, width=width, num_heads=heads, num_layers=layers, context=given.context)
        )


def steps_of(given, arm, budget):
    """After how many steps each growth and the run itself end: as many as the budget buys."""
    large = active(given, given.width, given.heads, given.layers)
    sizes, settings = sizes_of(given, arm), ARMS[arm]
    stages = [active(given, *sizes)]
    if "grow" in settings:
        stages += [active(given, *sizes[:2], layers) for layers in between(given, arm)]
        stages += [_after(given, arm)]
    ends = (*settings.get("spent", (SPENT,))[: len(stages) - 1], 1.0)
    shares = [end - begin for begin, end in zip((0.0, *ends), ends, strict=False)]
    many = [
        share * budget * given.steps * large / mean
        for share, mean in zip(shares, stages, strict=True)
    ]
    return [round(steps) for steps in itertools.accumulate(many)]


def between(given, arm):
    """Layers between the growths."""
    return [given.layers // 2] if ARMS[arm].get("through") else []


def _after(given, arm):
    """Active parameters after the last growth, on average."""
    settings = ARMS[arm]
    if "reopen" in settings:
        # The density moves along a cubic over half of the steps that are left, then stays.
        first, last = (hidden(given, arm, None, density) for density in settings["reopen"])
        return last + (first - last) * 0.5 / 4
    if "opened" in settings["grow"]:
        return hidden(given, arm, settings["grow"]["opened"])
    return active(given, given.width, given.heads, given.layers)


def hidden(given, arm, opened, density=None):
    """Active parameters of the larger model, if its hidden matrices keep some of their weights."""
    large, matrices = active(given, given.width, given.heads, given.layers), 12 * given.width**2
    if density is None:
        density = (1 + (ARMS[arm]["narrow"] - 1) * opened) / ARMS[arm]["narrow"]
    return large - (1 - density) * matrices * given.layers


def run(given, trunks, parts, arm, rate, budget, seed, measured_on, rate_after):
    """One run; its loss on `measured_on`, compute and CPU seconds.

    Once it has its last size it goes on at `rate_after`.
    """
    settings, (*growths, steps) = ARMS[arm], steps_of(given, arm, budget)
    decay_from = round((1 - runs.DECAY) * steps)
    first = growths[0] if growths else decay_from
    state = trunks.at(sizes_of(given, arm), rate, seed, first)
    jump, grown_at, at = None, None, None
    rewarm = settings.get("rewarm", runs.REWARM) * steps

    def factor(step):
        again = 1.0 if at is None or not rewarm else min(1.0, (step - at + 1) / rewarm)
        return again * min(1.0, (steps - step) / (steps - decay_from))

    targets = [{"layers": layers} for layers in between(given, arm)]
    narrow = settings.get("narrow")
    targets += [{"width": narrow} if narrow else {"layers": given.layers}]
    for number, target in zip(growths, targets, strict=False):
        if number > state.step:
            runs.train(given, parts["train"], state, number, factor, seed)
        at, before, grown_at = number, state.model, state.flops / 1e12
        runs.grow_state(state, target, settings)
        if "learned" in settings:
            learned = max(1, round(settings["learned"] * steps))
            runs.learn(given, parts["train"], state, before, learned, seed)
            # What is left of the budget after the learned matrices.
            one = 6.0 * given.batch * given.context * active_parameters(state.model)
            whole = budget * given.steps * one
            steps = state.step + max(1, round((whole - state.flops) / one))
            decay_from = round((1 - runs.DECAY) * steps)
        jump = runs.jump_of(given, parts["train"], seed, before, state.model, at)
    if growths:
        for group in state.optimizer.param_groups:
            group["initial_lr"] = rate_after

    if "reopen" in settings:
        control = runs.reopened(state, at, steps, settings["reopen"][1])
        runs.train(given, parts["train"], state, steps, factor, seed, control)
    else:
        name = f"{arm}, {rate}, {budget}, {seed}"
        trunks.finish(name, state, steps, factor, seed)
    return {
        "arm": arm, "rate": rate, "budget": budget, "seed": seed, "on": measured_on, "steps": steps,
        "loss": runs.evaluate(given, state.model, parts[measured_on]),
        "chooses": runs.evaluate(given, state.model, parts["choose"]),
        "tflop": state.flops / 1e12, "cpu_seconds": state.seconds, "jump": jump,
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "growths": growths, "rate_after": rate_after,
        "grown_at": grown_at, "curve": runs.curve_of(state),
    }  # fmt: skip


class Log:
    """Runs that are done, and a way to do one that is not."""

    def __init__(self, given, folder):
        self.given, self.rows = given, runs.read_log(given.log)
        self.parts = None
        if not given.log_only:
            self.parts = runs.parts_of(given.text)
            self.trunks = runs.Trunks(given, self.parts["train"], given.trunks or folder)

    def row(self, *key):
        """The run of (arm, rate, budget, seed, part of the text); None if it is not to be done."""
        names = ("arm", "rate", "budget", "seed", "on")
        for row in self.rows:
            if tuple(row[name] for name in names) == key:
                wanted = steps_of(self.given, key[0], key[2])[-1]
                if row.get("steps", wanted) != wanted and "learned" not in ARMS[key[0]]:
                    raise SystemExit(f"{self.given.log}: its runs are of other sizes or steps.")
                return row
        if self.parts is None:
            return None
        # A grown model has the size of the large one, and takes the rate that won its race.
        grows = "grow" in ARMS[key[0]]
        rate_after = self.best_rate("large from scratch") if grows else None
        row = run(self.given, self.trunks, self.parts, *key, rate_after)
        self.rows.append(row)
        if self.given.log is not None:
            with self.given.log.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
        options.progress(json.dumps({k: v for k, v in row.items() if k != "curve"}))
        return row

    def best_rate(self, arm):
        """The rate that a short race on other text chooses, for all arms of the same beginning."""
        sizes = sizes_of(self.given, arm)
        first = next(a for a in ARMS if sizes_of(self.given, a) == sizes)
        rates = list(self.given.rates)
        while True:
            found = [self.row(first, rate, self.given.race, 0, "choose") for rate in rates]
            if None in found:
                return None
            best = min(found, key=lambda row: row["loss"])["rate"]
            if best < rates[-1]:
                return best
            rates.append(2 * rates[-1])


def main():
    given = arguments()
    torch.set_num_threads(1)
    if given.lead:
        show_lead(given, runs.read_log(given.log))
        return
    if given.steps_only:
        tokens = given.batch * growing_steps.CONTEXT
        found = growing_steps.compare(
            given.widths, given.factors, given.opened, tokens, given.rounds
        )
        document = {"machine": options.machine(), "steps": found}
        options.give(given, document, growing_steps.table_of(found, tokens))
        return
    with tempfile.TemporaryDirectory() as folder:
        log, rows = Log(given, Path(folder)), []
        for arm, budget, seed in jobs(given):
            rate = log.best_rate(arm)
            rows += [rate and log.row(arm, rate, budget, seed, "report")]
    rows = [row for row in rows if row is not None]
    if given.svg is not None:
        draw(given.svg, rows)
    show(given, rows)


def draw(path, rows):
    """The training loss of the best operator over compute, with its growth marked."""
    found = [row for row in rows if row["arm"] == BEST and row["seed"] == 0]
    row = max(found, key=lambda row: row["budget"])
    marks = ((row["grown_at"], "grow"),)
    points = tuple((x, y / math.log(2)) for x, y in row["curve"])
    curve = Curve(f"{BEST}: bits per byte over compute", points, marks, unit="TFLOP")
    path.write_text(render_svg(curve_chart(curve)))


def smooth(curve):
    """A training curve, each point the mean of itself and its neighbours."""
    near = [curve[max(0, at - 1) : at + 2] for at in range(len(curve))]
    means = [sum(y for _, y in some) / len(some) for some in near]
    return [(x, mean) for (x, _), mean in zip(curve, means, strict=True)]


def lead(curve, scratch, share):
    """The compute of scratch to the loss of a curve at a share of the budget, less the share."""
    end = scratch[-1][0]
    loss = next((y for x, y in curve if x >= share * end), curve[-1][1])
    reached = next((x for x, y in scratch if y <= loss), None)
    return loss, None if reached is None else reached / end - share


def show_lead(given, rows):
    table = Table(title="Training loss in bits, and the lead over scratch in parts of the budget")
    table.add_column("arm")
    shares = [number / 10 for number in range(1, 10)]
    for head in ("budget", "seed", *(f"{share:.0%}" for share in shares)):
        table.add_column(head, justify="right")
    reported = [row for row in rows if row["on"] == "report"]
    found = []
    for row in reported:
        key = (row["budget"], row["seed"])
        scratch = [
            smooth(r["curve"]) for r in reported
            if r["arm"] == "large from scratch" and (r["budget"], r["seed"]) == key
        ]  # fmt: skip
        if row["arm"] == "large from scratch" or not scratch:
            continue
        ahead = [lead(smooth(row["curve"]), scratch[0], share) for share in shares]
        words = [
            f"{loss / math.log(2):.3f} {'more' if by is None else format(by, '+.2f')}"
            for loss, by in ahead
        ]
        table.add_row(row["arm"], f"{row['budget']:g} B", str(row["seed"]), *words)
        found.append(
            {"arm": row["arm"], "budget": row["budget"], "seed": row["seed"], "lead": ahead}
        )
    options.give(given, {"machine": options.machine(), "lead": found}, table)


def crossing(rows, loss, spent):
    """Where a curve of (what was spent, loss) reaches a loss, between its points."""
    points = sorted((row[spent], row["loss"]) for row in rows)
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y0 > loss >= y1:
            share = (y0 - loss) / (y0 - y1)
            return math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))
    return points[0][0] if points and points[0][1] <= loss else None


def saving(rows, scratch, spent):
    """What a growing arm saves to the loss of scratch, in words."""
    reached = crossing(rows, scratch["loss"], spent)
    if reached is None:
        return "never"
    least = ">= " if reached == min(row[spent] for row in rows) else ""
    return f"{least}{1 - reached / scratch[spent]:.0%}"


def show(given, rows):
    table = Table(
        title=f"GPT {given.layers} x {given.width}, bytes; bits per byte on held-out text"
    )
    for head in (
        "arm",
        "budget",
        "seed",
        "rate",
        "steps",
        "TFLOP",
        "CPU s",
        "chooses",
        "bits",
        "jump",
        "saved",
        "CPU s saved",
    ):
        table.add_column(head, justify="left" if head == "arm" else "right")
    for row in sorted(rows, key=lambda row: (row["budget"], list(ARMS).index(row["arm"]))):
        scratch = [
            r for r in rows
            if r["arm"] == "large from scratch"
            and (r["budget"], r["seed"]) == (row["budget"], row["seed"])
        ]  # fmt: skip
        same = [r for r in rows if r["arm"] == row["arm"] and r["seed"] == row["seed"]]
        saved = ["", ""]
        if "grow" in ARMS[row["arm"]] and scratch and len(same) > 1:
            saved = [saving(same, scratch[0], spent) for spent in ("tflop", "cpu_seconds")]
        jump = "" if row["jump"] is None else f"{row['jump'] / math.log(2):+.4f}"
        table.add_row(
            row["arm"], f"{row['budget']:g} B", str(row["seed"]), f"{row['rate']:g}",
            str(row["steps"]), f"{row['tflop']:.2f}", f"{row['cpu_seconds']:.0f}",
            f"{row['chooses'] / math.log(2):.4f}" if "chooses" in row else "",
            f"{row['loss'] / math.log(2):.4f}", jump, *saved,
        )  # fmt: skip
    options.give(given, {"machine": options.machine(), "runs": rows}, table)


if __name__ == "__main__":
    main()
