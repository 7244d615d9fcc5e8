# SPDX-License-Identifier: Apache-2.0
"""DLRM on click logs: AUC on test by arm and seed, and the curves of validation over epochs.

    python benchmarks/clicks.py [--flights flights.csv] [--movielens movielens.csv] [--generated]
        [--arms fp32 ...] [--seeds 3] [--epochs 4] [--rows 200000] [--log FILE] [--json FILE]
        [--picture FILE]

The .csv files are written by benchmarks/peers/click_tables.py. Every arm is the same recipe but for
how tables are held while they are trained: `fp32` (stock tables, torch's Adagrad), `fp32, row-wise`
(Adagrad with one number of state for a row), or the latter in 8, 4 and 2 bits with an exact scale
every 1 or 200 steps, or codes of 8 and 4 bits that are trained in place, without float32 rows (`no
shadow`). `fp32, then int4` is the state of `fp32` whose tables were rounded after
training (PTQ), with one scale for a table. The model is measured on the validation part after every
epoch; the epoch with the lowest loss is reported on the test part, which nothing is chosen by. The
last epoch is told beside it, because tables overfit. Flights are split by time, the others by hash.

With --log, runs that are in FILE already are not done again. --picture draws validation AUC over
epochs as SVG, a panel for each log.
"""

import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

import gossamer
from gossamer.data.clicks import click_metrics, columns_of, open_clicks
from gossamer.nn.surgery.tables import quantize_tables
from gossamer.recipes.stages.train.clicks import ClicksSettings
from gossamer.training.run_files import read_metrics
from gossamer.zoo.problems import click_problem, write_criteo
from support import options
from support.curves import curves_svg

# Arm -> the section `quantize_tables` of the recipe; None: stock tables, Adagrad by elements.
ARMS = {
    "fp32": None,
    "fp32, row-wise": {"bits": 32},
    **{
        f"int{bits}, no shadow": {"bits": bits, "granularity": "row", "shadow": False}
        for bits in (8, 4)
    },
    **{
        f"int{bits}, every {period}": {"bits": bits, "granularity": "table", "period": period}
        for bits in (8, 4, 2)
        for period in (1, 200)
    },
}
FLIGHTS = {
    "label": "late",
    "numbers": ["distance"],
    "categories": [
        "origin", "destination", "month", "weekday", "hour", "origin x destination",
        "origin x hour", "destination x hour", "origin x month x weekday",
        "origin x destination x hour",
    ],
    "ids": "vocabulary",
    "floor": 2,
    "time": "when",
    "split": {"by": "time", "validation": 0.1, "test": 0.1},
}  # fmt: skip
MOVIELENS = {
    "label": "liked",
    "numbers": ["age"],
    "categories": [
        "user", "film", "gender", "occupation", "zip", "year", "occupation x film",
        {"column": "genres", "separator": "|"},
    ],
    "ids": "vocabulary",
    "split": {"by": "hash", "validation": 0.1, "test": 0.1},
}  # fmt: skip
ROUNDED = {f"fp32, then int{bits}": bits for bits in (8, 4, 2)}
GENERATED = {"format": "criteo", "ids": "vocabulary", "floor": 2}
BATCH = 256
_BLOCK = 8192  # rows of the test part that are scored at once


def arguments():
    made = options.parser("DLRM on click logs.")
    made.add_argument("--flights", type=Path, help=".csv of peers/click_tables.py")
    made.add_argument("--movielens", type=Path, help=".csv of peers/click_tables.py")
    made.add_argument("--generated", action="store_true", help="Criteo's form, Bayes AUC known")
    made.add_argument("--rows", type=int, default=200_000, help="of the generated log")
    made.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--epochs", type=int, default=4)
    made.add_argument("--width", type=int, default=16)
    made.add_argument("--picture", type=Path, help="curves over epochs, as SVG")
    made.add_argument("--log", type=Path, help="finished runs, as JSON lines")
    return made.parse_args()


def recipe(given, columns, arm, seed, steps):
    train = {
        "task": "clicks",
        "model": {"name": "dlrm", "width": given.width, "bottom": [64], "top": [64, 32]},
        "data": {"clicks": columns},
        "epochs": given.epochs,
        "batch": BATCH,
        "optimizer": {
            "name": "adamw", "lr": 1e-3, "weight_decay": 0.0,
            "tables": {"name": "adagrad", "lr": 0.02},
        },
        "rate": {"shape": "constant", "warmup": 0.02},
        "checkpoint": {"every": 0},
        "evaluation": {"every": steps, "keep": "best"},
        "log_every": 1000,
        "seed": seed,
    }  # fmt: skip
    if ARMS[arm] is not None:
        train["quantize_tables"] = ARMS[arm]
    return {"gossamer": 1, "stages": [{"train": train}]}


def run(given, name, path, columns, arm, seed):
    """One run: AUC and loss on test at the chosen epoch, and validation after every epoch."""
    with path.open("rb") as file:
        rows = sum(1 for _ in file)
    steps = max(1, int(rows * 0.8) // BATCH)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        result = gossamer.train(recipe(given, columns, arm, seed, steps), path, out=out)
        records = read_metrics(out.parent / "out.run" / "metrics.jsonl")
        after = rounded(out, path, columns, Path(folder)) if arm == "fp32" else {}
    curve = [
        {"step": r["step"], "auc": r["auc"], "loss": r["eval_loss"]}
        for r in records
        if r["kind"] == "evaluation" and r["step"]
    ]
    chosen = min(curve, key=lambda point: point["loss"])
    last = [r for r in records if r["kind"] == "evaluation"][-1]
    quality = result.quality
    return {
        "data": name, "arm": arm, "seed": seed, "epochs": given.epochs, "rows": rows,
        "test_auc": quality["test_auc"], "test_log_loss": quality["test_log_loss"],
        "test_entropy": quality["test_normalised_entropy"],
        "test_calibration": quality["test_calibration"],
        "chosen_epoch": round(chosen["step"] / steps), "curve": curve,
        "cpu_seconds": 60 * last["cpu_minutes"],
        "bytes": result.document["bytes_sparse"], "rounded": after,
    }  # fmt: skip


def rounded(model, path, columns, folder):
    """Metrics on test of a trained model whose tables are rounded now, by arm."""
    log = open_clicks(folder / "log", columns_of(ClicksSettings(**columns).columns()), path)
    test, found = log.parts["test"], {}
    for arm, bits in ROUNDED.items():
        net = gossamer.load(model)
        quantize_tables(net, bits)
        with torch.no_grad():
            ends = range(0, len(test), _BLOCK)
            blocks = [test.block(at, min(at + _BLOCK, len(test))) for at in ends]
            logits = [net.eval()(*block.inputs()).float() for block in blocks]
        found[arm] = click_metrics(torch.cat(logits), torch.from_numpy(np.array(test.labels)))
    return found


def with_rounded(rows):
    """The runs, and behind each of `fp32` those that it was rounded to."""
    for row in rows:
        yield row
        for arm, found in row.get("rounded", {}).items():
            named = {
                "test_auc": found["auc"], "test_log_loss": found["eval_loss"],
                "test_entropy": found["normalised_entropy"],
                "test_calibration": found["calibration"],
            }  # fmt: skip
            same = {key: row[key] for key in ("data", "seed", "epochs", "chosen_epoch", "curve")}
            yield same | named | {"arm": arm}


def logged(given, log, name, path, columns, arm, seed):
    for row in log:
        if (row["data"], row["arm"], row["seed"], row["epochs"]) == (name, arm, seed, given.epochs):
            return row
    row = run(given, name, path, columns, arm, seed)
    log.append(row)
    if given.log is not None:
        with given.log.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
    options.progress(json.dumps({key: row[key] for key in row if key != "curve"}))
    return row


def main():
    given = arguments()
    torch.set_num_threads(1)
    log = []
    if given.log is not None and given.log.exists():
        log = [json.loads(line) for line in given.log.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        data = {"flights": (given.flights, FLIGHTS), "movielens": (given.movielens, MOVIELENS)}
        bayes = None
        if given.generated:
            path = Path(folder) / "generated.tsv"
            drawn = click_problem(torch.Generator().manual_seed(0), num_rows=given.rows)
            write_criteo(drawn, path)
            data["generated"], bayes = (path, GENERATED), drawn.bayes_auc()
        rows = [
            logged(given, log, name, path, columns, arm, seed)
            for name, (path, columns) in data.items()
            if path is not None
            for seed in range(given.seeds)
            for arm in given.arms
        ]
    if given.picture is not None:
        given.picture.write_text(curves_svg(rows))
    show(given, list(with_rounded(rows)), bayes)


def show(given, rows, bayes):
    table = Table(title=f"DLRM, width {given.width}: test AUC at the epoch chosen on validation")
    for head in ("data", "arm", "AUC", "SD", "log loss", "entropy", "calibration", "epoch",
                 "last epoch, validation", "CPU s", "bytes"):  # fmt: skip
        table.add_column(head, justify="left" if head in ("data", "arm") else "right")
    for name, arm in dict.fromkeys((row["data"], row["arm"]) for row in rows):
        same = [row for row in rows if (row["data"], row["arm"]) == (name, arm)]
        aucs = [row["test_auc"] for row in same]

        def mean(key, same=same):
            return statistics.fmean(row.get(key, float("nan")) for row in same)

        best = statistics.fmean(max(p["auc"] for p in row["curve"]) for row in same)
        last = statistics.fmean(row["curve"][-1]["auc"] for row in same)
        spread = statistics.stdev(aucs) if len(aucs) > 1 else float("nan")
        table.add_row(
            name, arm, f"{mean('test_auc'):.4f}", f"{spread:.4f}", f"{mean('test_log_loss'):.4f}",
            f"{mean('test_entropy'):.4f}", f"{mean('test_calibration'):.3f}",
            f"{mean('chosen_epoch'):.1f}", f"{last - best:+.4f}", f"{mean('cpu_seconds'):.0f}",
            f"{mean('bytes'):.0f}",
        )  # fmt: skip
    document = {"machine": options.machine(), "runs": rows, "bayes_auc": bayes}
    shown = [table] + ([] if bayes is None else [f"AUC of the true chances: {bayes:.4f}"])
    options.give(given, document, *shown)


if __name__ == "__main__":
    main()
