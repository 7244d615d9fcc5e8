# SPDX-License-Identifier: Apache-2.0
"""Structured pruning of MiniLM: Spearman on STS-B dev after every stage, time, and measured speed.

    GOSSAMER_DATA=DIR python benchmarks/structured.py [--json] [--budgets 0.7 0.6 0.5] [--draws 3]
        [--rounds 1] [--multiple 1] [--pairs 2048] [--threads 2]

Every draw takes other pairs of STS-B train: a quarter of them is set aside to choose between the
states before and after a stage, dev is only looked at for the table. `lost` is in points against
the dense model (negative: better than dense), `time` is all stages with their evaluation, `speed`
dense latency / slim latency on one sequence of 128 tokens, both timed in one interleaved race.
"""

import copy
import random
import statistics
import sys
import time

import torch
from rich.table import Table

from gossamer import settings
from gossamer.ops.timing import duel
from gossamer.pruning.structured import prune_structured
from support import options, stsb
from support.minilm import load_minilm

GOALS = {0.7: 0.0, 0.6: 0.0, 0.5: 1.0}
LATENCY_TOKENS = 128
LATENCY_GOAL = 1.7
TIME_GOAL = 60.0


def arguments():
    made = options.parser("Structured pruning of MiniLM on STS-B.")
    made.add_argument("--budgets", type=float, nargs="+", default=list(GOALS))
    made.add_argument("--draws", type=int, default=3)
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--pairs", type=int, default=2048)
    made.add_argument("--multiple", type=int, default=1, help="kept filters are a multiple of it")
    made.add_argument("--fisher", choices=("batch", "sample"), default="batch")
    made.set_defaults(threads=2)
    return made.parse_args()


def one_run(minilm, train, dev, budget, seed, given):
    """One draw of calibration pairs at one budget."""
    pairs = random.Random(seed).sample(train, given.pairs)  # noqa: S311 (a draw, no secret)
    aside = len(pairs) // 4
    chooser = stsb.make_batches(pairs[:aside], minilm.tokenizer, 64)
    batches = stsb.make_batches(pairs[aside:], minilm.tokenizer, 32)
    model = copy.deepcopy(minilm.model)
    on_dev, looking = [], [0.0]

    def evaluate(state):
        start = time.perf_counter()
        on_dev.append(stsb.spearman(state, dev))
        looking[0] += time.perf_counter() - start
        return stsb.spearman(state, chooser)

    start = time.perf_counter()
    result = prune_structured(
        model,
        batches,
        stsb.loss,
        budget=budget,
        tokens=stsb.mean_length(batches),
        fisher=given.fisher,
        keep=stsb.keep,
        evaluate=evaluate,
        rounds=given.rounds,
        multiple=given.multiple,
    )
    seconds = time.perf_counter() - start - looking[0]
    names = [s.name for s in result.stages if s.name in ("search", "rearrange", "tune", "refit")]
    ids = torch.full((1, LATENCY_TOKENS), 2000)
    with torch.inference_mode():
        race = duel(
            lambda: minilm.model(input_ids=ids),
            lambda: model(input_ids=ids),
            budget_seconds=given.seconds or 3.0,
            min_rounds=20,
        )
    return {
        "budget": budget,
        "seed": seed,
        "fraction": result.fraction,
        "dev_after_stage": list(zip(names, on_dev, strict=True)),
        "dev": stsb.spearman(model, dev),
        "seconds": seconds,
        "speed": race.ratio,
        "result": result.to_dict(),
    }


def summary(dense, runs, budgets):
    table = Table(title=f"MiniLM, STS-B dev Spearman x 100, dense {dense:.2f}")
    for column in ("MACs", "search", "rearrange", "tune", "refit", "kept", "lost", "goal", "time s",
                   "speed"):  # fmt: skip
        table.add_column(column, justify="right")
    for budget in budgets:
        own = [run for run in runs if run["budget"] == budget]
        stages = [dict(run["dev_after_stage"]) for run in own]
        means = [
            statistics.mean(stage[name] for stage in stages)
            for name in ("search", "rearrange", "tune", "refit")
        ]
        kept = [run["dev"] for run in own]
        spread = max(kept) - min(kept)
        goal = GOALS.get(budget)
        table.add_row(
            f"{budget:g}",
            *(f"{mean:.2f}" for mean in means),
            f"{statistics.mean(kept):.2f} +- {spread / 2:.2f}",
            f"{dense - statistics.mean(kept):.2f}",
            "-" if goal is None else f"<= {goal:g}",
            f"{statistics.mean(run['seconds'] for run in own):.0f} (<= {TIME_GOAL:g})",
            f"{statistics.mean(run['speed'] for run in own):.2f}x"
            + (f" (>= {LATENCY_GOAL})" if budget == 0.5 else ""),
        )
    return table


def main():
    given = arguments()
    torch.set_num_threads(given.threads)
    folder = settings.data_dir()
    if folder is None or not (folder / "stsb").is_dir():
        sys.exit("structured: set GOSSAMER_DATA to the folder that holds stsb.")
    minilm = load_minilm()
    train = stsb.read_pairs(folder, "train")
    dev = stsb.make_batches(stsb.read_pairs(folder, "dev"), minilm.tokenizer, 64)
    dense = stsb.spearman(minilm.model, dev)
    runs = []
    for budget in given.budgets:
        for seed in range(given.draws):
            options.progress(f"structured: {budget:g} of the MACs, draw {seed}")
            runs.append(one_run(minilm, train, dev, budget, seed, given))
    document = {"machine": options.machine(), "dense": dense, "runs": runs}
    options.give(given, document, summary(dense, runs, given.budgets))


if __name__ == "__main__":
    main()
