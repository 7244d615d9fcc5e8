# SPDX-License-Identifier: Apache-2.0
"""Growth beside training from scratch, stacking and others: held-out loss at equal compute.

    python benchmarks/growth.py TEXT [--width 128] [--layers 6] [--steps 3000] [--batch 16]
        [--context 128] [--rates 1e-3 2e-3 4e-3] [--arms ...] [--parts 0.5 0.65 0.8 1]
        [--seeds 1] [--race 0.25] [--log FILE] [--json FILE]

A byte-level GPT on TEXT, whose last tenth is held out: its first half chooses learning rates, its
second half is reported and nothing is chosen on it. The budget is the compute (6 N D, N without
tables) of the large model over --steps; every arm takes as many steps as that buys, under a
warm-up, stable, decay schedule over its own steps, with the learning rate that was best in a short
race of its own (--race: part of the budget). --parts repeats the growing arms with less compute:
where their loss crosses that of the large model from scratch, the saving is read off. The small
model that never grows gets the same compute: below it a table of growth shows nothing.

With --log, runs that are in FILE already are not done again.
"""

import itertools
import json
import lzma
import math
import tempfile
from pathlib import Path

import torch
from rich.table import Table

import gossamer
from gossamer.nn.prunable import active_parameters
from gossamer.training.run_files import read_metrics
from gossamer.zoo import GPT
from support import options

VOCABULARY = 256
GROW_AT = 0.6
# Arm -> layers to begin with, halved width, what grows and how.
ARMS = {
    "large from scratch": {},
    "small, never grown": {"layers": 1},
    "1 layer, out0": {"layers": 1, "grow": {}},
    "half the layers, out0": {"half": True, "grow": {}},
    "1 layer, out0 on top": {"layers": 1, "grow": {"where": "top"}},
    "1 layer, stack": {"layers": 1, "grow": {"mode": "stack"}},
    "half the layers, stack": {"half": True, "grow": {"mode": "stack"}},
    "1 layer, random": {"layers": 1, "grow": {"mode": "random"}},
    "1 layer, out0, no optimizer state": {"layers": 1, "grow": {"state": "reset"}},
    "1 layer, out0, no re-warm-up": {"layers": 1, "grow": {"rewarm": 0}},
    "half the width, noise": {"narrow": True, "grow": {}},
    "half the width, no breaker": {"narrow": True, "grow": {"symmetry": "none"}},
    "half the width, uniform copies": {"narrow": True, "grow": {"blocks": "uniform"}},
    "half the width, clock back": {"narrow": True, "grow": {"rho": 1.776}},
    "half the width, 0.25 opened": {"narrow": True, "grow": {"opened": 0.25}},
}
MAIN = ("1 layer, out0", "half the layers, out0", "1 layer, stack", "half the width, noise")


def arguments():
    made = options.parser("Growth beside training from scratch.")
    made.add_argument("text", type=Path, help="a text file, or .xz")
    made.add_argument("--width", type=int, default=128)
    made.add_argument("--layers", type=int, default=6)
    made.add_argument("--heads", type=int, default=4)
    made.add_argument("--steps", type=int, default=3000, help="of the large model")
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--context", type=int, default=128)
    made.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    made.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    made.add_argument("--parts", type=float, nargs="+", default=[0.5, 0.65, 0.8, 1.0])
    made.add_argument("--seeds", type=int, default=1)
    made.add_argument("--race", type=float, default=0.25, help="part of the budget")
    made.add_argument("--log", type=Path, help="finished runs, as JSON lines")
    return made.parse_args()


def split(text, folder):
    """Files to train on, to choose on, and to report on."""
    raw = lzma.decompress(text.read_bytes()) if text.suffix == ".xz" else text.read_bytes()
    whole = raw.decode("utf-8", errors="ignore")
    first, second = round(0.9 * len(whole)), round(0.95 * len(whole))
    parts = {"train": whole[:first], "choose": whole[first:second], "report": whole[second:]}
    for name, content in parts.items():
        (folder / f"{name}.txt").write_text(content, encoding="utf-8")
    return {name: folder / f"{name}.txt" for name in parts}


def sizes_of(given, arm):
    """Width, heads and layers before growth."""
    settings = ARMS[arm]
    narrow = 2 if settings.get("narrow") else 1
    layers = given.layers // 2 if settings.get("half") else settings.get("layers", given.layers)
    return given.width // narrow, given.heads // narrow, layers


def active(given, width, heads, layers):
    with torch.device("meta"):
        return active_parameters(
            GPT(VOCABULARY, width=width, num_heads=heads, num_layers=layers, context=given.context)
        )


def steps_of(given, arm, part):
    """As many steps as the budget buys."""
    whole = active(given, given.width, given.heads, given.layers)
    small, large = active(given, *sizes_of(given, arm)), whole
    opened = ARMS[arm].get("grow", {}).get("opened")
    if opened is not None:
        # Of the four blocks of a grown matrix, two lie between copies.
        large = small + (whole - small) * (1 + 2 * opened) / 3
    mean = GROW_AT * small + (1 - GROW_AT) * large if "grow" in ARMS[arm] else small
    return max(20, round(part * given.steps * whole / mean))


def recipe(given, arm, rate, steps, seed):
    width, heads, layers = sizes_of(given, arm)
    growths = []
    if "grow" in ARMS[arm]:
        target = {"width": 2} if ARMS[arm].get("narrow") else {"layers": given.layers}
        growths = [{"at": GROW_AT, "rewarm": 0.02, **target, **ARMS[arm]["grow"]}]
    train = {
        "task": "text",
        "model": {
            "name": "gpt", "width": width, "layers": layers, "heads": heads,
            "context": given.context,
        },
        "steps": steps,
        "batch": given.batch,
        "optimizer": {"name": "adamw", "lr": rate, "betas": [0.9, 0.99]},
        "rate": {"shape": "wsd", "warmup": 0.03, "decay": 0.2},
        "grow": growths,
        "checkpoint": {"every": 0},
        "evaluation": {"every": 0},
        "log_every": 100,
        "seed": seed,
    }  # fmt: skip
    return {"gossamer": 1, "stages": [{"train": train}]}


def run(given, files, arm, rate, part, seed, measured_on):
    """One run; its loss on `measured_on`, compute and CPU seconds."""
    steps = steps_of(given, arm, part)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        result = gossamer.train(
            recipe(given, arm, rate, steps, seed),
            files["train"],
            out=out,
            evaluation=files[measured_on],
        )
        records = read_metrics(out.parent / "out.run" / "metrics.jsonl")
    grown = [r for r in records if r["kind"] == "growth"]
    last = [r for r in records if r["kind"] == "evaluation"][-1]
    tokens = given.batch * given.context
    flops = last.get("flops") or 6 * active(given, *sizes_of(given, arm)) * tokens * steps
    return {
        "arm": arm, "rate": rate, "part": part, "seed": seed, "on": measured_on, "steps": steps,
        "loss": result.quality["eval_loss"], "tflop": flops / 1e12,
        "cpu_seconds": 60 * last["cpu_minutes"],
        "jump": grown[0]["loss_after"] - grown[0]["loss_before"] if grown else None,
    }  # fmt: skip


def logged(given, files, log, *key):
    for row in log:
        if (row["arm"], row["rate"], row["part"], row["seed"], row["on"]) == key:
            return row
    row = run(given, files, *key)
    log.append(row)
    if given.log is not None:
        with given.log.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
    options.progress(json.dumps(row))
    return row


def best_rate(given, files, log, arm):
    """The learning rate that a short race on other text chooses."""
    found = [logged(given, files, log, arm, rate, given.race, 0, "choose") for rate in given.rates]
    return min(found, key=lambda row: row["loss"])["rate"]


def crossing(rows, loss):
    """Compute at which a curve of (TFLOP, loss) reaches a loss, between its points."""
    points = sorted((row["tflop"], row["loss"]) for row in rows)
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y0 > loss >= y1:
            share = (y0 - loss) / (y0 - y1)
            return math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))
    return points[0][0] if points and points[0][1] <= loss else None


def main():
    given = arguments()
    torch.set_num_threads(1)
    log = []
    if given.log is not None and given.log.exists():
        log = [json.loads(line) for line in given.log.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        files = split(given.text, Path(folder))
        rows = []
        for arm in given.arms:
            rate = best_rate(given, files, log, arm)
            parts = given.parts if arm in MAIN else [1.0]
            for seed, part in itertools.product(range(given.seeds), parts):
                rows += [logged(given, files, log, arm, rate, part, seed, "report")]
    show(given, rows)


def show(given, rows):
    scratch = [r["loss"] for r in rows if r["arm"] == "large from scratch"]
    goal = sum(scratch) / len(scratch) if scratch else math.nan
    table = Table(
        title=f"GPT {given.layers} x {given.width}, bytes; bits per byte on held-out text"
    )
    for head in ("arm", "rate", "steps", "TFLOP", "CPU s", "bits", "jump", "saved"):
        table.add_column(head, justify="left" if head == "arm" else "right")
    for row in rows:
        same = [r for r in rows if r["arm"] == row["arm"] and r["seed"] == row["seed"]]
        saved = ""
        if "grow" in ARMS[row["arm"]] and row["part"] == 1.0 and scratch:
            reached = crossing(same, goal)
            whole = next(r["tflop"] for r in rows if r["arm"] == "large from scratch")
            saved = "never" if reached is None else f"{1 - reached / whole:.0%}"
        jump = "" if row["jump"] is None else f"{row['jump'] / math.log(2):+.4f}"
        table.add_row(
            row["arm"], f"{row['rate']:g}", str(row["steps"]), f"{row['tflop']:.2f}",
            f"{row['cpu_seconds']:.0f}", f"{row['loss'] / math.log(2):.4f}", jump, saved,
        )  # fmt: skip
    options.give(given, {"machine": options.machine(), "runs": rows}, table)


if __name__ == "__main__":
    main()
