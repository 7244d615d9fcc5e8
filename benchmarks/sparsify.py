# SPDX-License-Identifier: Apache-2.0
"""Quality of one-shot pruning on real models: every method on the same calibration data.

    GOSSAMER_DATA=DIR python benchmarks/sparsify.py minilm|smollm2 [--draws 3] [--only WORD]

MiniLM: calibrated on 512 pairs of STS-B train without their scores, Spearman x 100 on STS-B dev.
SmolLM2-135M (4-bit file, dequantised): calibrated on 64 windows of 512 tokens of the first 60 % of
WikiText-2 valid, perplexity on 40 windows of the rest. Every draw takes other samples. `lost` is in
points of Spearman, `ratio` pruned perplexity over dense; goals in brackets. Seconds are CPU time of
pruning alone. Methods that lose are shown too.
"""

import copy
import lzma
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from gossamer import settings
from gossamer.cli.models import load_source
from gossamer.cli.shell import table
from gossamer.data.files import Pair, Texts, read_samples
from gossamer.data.token_ids import draw, windows
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer
from gossamer.pruning.calibration.flow import as_batches
from gossamer.recipes import Calibration, make_recipe
from gossamer.runs.calibration import calibration_batches, pair_correlation, perplexity
from gossamer.runs.stages import StageInput
from gossamer.runs.stages.prune import run_prune_stage
from support import stsb
from support.options import give, machine, parser, progress

METHODS = {
    "magnitude": {"method": "magnitude"},
    "Wanda": {"method": "wanda"},
    "SparseGPT": {"method": "sparsegpt"},
    "SparseGPT + re-fit": {"method": "sparsegpt", "refit": True},
    "ADMM": {"method": "admm"},
    "SparseGPT, match dense": {"method": "sparsegpt", "match": "dense"},
    "ADMM, match dense": {"method": "admm", "match": "dense"},
}
# (method that must reach it, at most) by pattern or sparsity: points lost, or ratio to dense.
GOALS = {
    "minilm": {
        0.5: {"SparseGPT": 0.3, "best": 0.0},
        0.7: {"SparseGPT": 2.8, "best": 1.7},
        0.8: {"SparseGPT": 5.8, "best": 4.0},
        0.9: {"SparseGPT": 8.5, "best": 6.5},
    },
    "smollm2": {
        0.5: {"SparseGPT": 1.43, "best": 1.31},
        "2:4": {"SparseGPT": 2.07, "best": 1.84},
        "4:8": {},
        "4:16": {},
    },
}


class MiniLM:
    """STS-B: what is lost in points."""

    unit = "lost"

    def __init__(self, folder, quick):
        source = load_source("demo:minilm")
        self.model = source.model
        self.tokenizer = make_tokenizer(source.beside[TOKENIZER_FILE])
        self.train = stsb.read_pairs(folder, "train")
        self.dev = [Pair(*pair) for pair in stsb.read_pairs(folder, "dev")][:: 4 if quick else 1]
        self.ignore = ["pooler"]

    def batches(self, seed):
        """Texts of one draw of pairs."""
        pairs = [self.train[i] for i in draw(len(self.train), 512, seed)]
        # Each text once, in a fixed order: a set's order differs from process to process.
        texts = tuple(dict.fromkeys(text for pair in pairs for text in pair[:2]))
        samples = Texts(Path("sts-train"), "", texts)
        return calibration_batches(
            self.model, samples, self.tokenizer, Calibration(samples=len(texts), tokens=128)
        )

    def quality(self, model):
        """Spearman x 100."""
        return 100 * pair_correlation(model, self.dev, self.tokenizer, 128)

    def compare(self, dense, pruned):
        """Points lost."""
        return dense - pruned


class SmolLM2:
    """WikiText-2: ratio of perplexities."""

    unit = "ratio"

    def __init__(self, folder, quick, calibration_windows=64):
        source = load_source("demo:smollm2")
        self.calibration_windows = calibration_windows
        self.model = source.model
        self.ignore = None
        self.tokenizer_file = source.beside[TOKENIZER_FILE]
        tokenizer = make_tokenizer(self.tokenizer_file)
        text = lzma.decompress((folder / "wikitext2" / "valid.txt.xz").read_bytes())
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "valid.txt"
            path.write_bytes(text)
            ids = windows(read_samples(path), tokenizer, 512)
        cut = int(len(ids) * 0.6)
        self.calibration, rest = ids[:cut], ids[cut:]
        count = 8 if quick else 40
        self.evaluation = rest[[i * len(rest) // count for i in range(count)]]

    def batches(self, seed):
        """Windows of one draw."""
        chosen = self.calibration[draw(len(self.calibration), self.calibration_windows, seed)]
        return as_batches([{"input_ids": part} for part in chosen.split(4)], "benchmark")

    def quality(self, model):
        """Perplexity."""
        return perplexity(model, self.evaluation)

    def compare(self, dense, pruned):
        """How many times the dense perplexity."""
        return pruned / dense


TASKS = {"minilm": MiniLM, "smollm2": SmolLM2}


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("task", choices=sorted(TASKS))
    options.add_argument("--draws", type=int, default=3)
    options.add_argument("--only", default="", help="one method, or all whose name holds this word")
    options.add_argument("--at", help="one sparsity or pattern")
    given = options.parse_args()
    folder = settings.data_dir()
    if folder is None:
        sys.exit("sparsify: set GOSSAMER_DATA to the folder that holds stsb and wikitext2.")
    torch.set_num_threads(given.threads)
    task = TASKS[given.task](folder, given.quick)
    before = machine()
    dense = task.quality(task.model)
    progress(f"dense {dense:.2f}")
    rows = []
    for where, goals in GOALS[given.task].items():
        if given.at and given.at != str(where):
            continue
        for name, step in METHODS.items():
            is_exact = given.only in METHODS
            if given.only == name or (not is_exact and given.only.lower() in name.lower()):
                # Without data every draw is the same.
                draws = 1 if name == "magnitude" else given.draws
                runs = [one_run(task, step, where, seed) for seed in range(draws)]
                rows.append(row_of(task, dense, where, name, goals, runs))
                progress(f"{where} {name}: {rows[-1]['value']:.3f} {task.unit}")
    mark_best(rows, GOALS[given.task])
    document = {"machine": before, "task": given.task, "dense": dense, "rows": rows}
    give(given, document, shown(task, dense, rows))


def one_run(task, step, where, seed):
    """Quality and CPU seconds of one calibration draw."""
    target = {"pattern": where} if isinstance(where, str) else {"sparsity": where}
    model, seconds = one_pruning(task, {**step, **target}, seed)
    return task.quality(model), seconds


def one_pruning(task, step, seed):
    """A pruned copy of the model, and the CPU seconds it took."""
    model = copy.deepcopy(task.model)
    settings_ = {**step, **({"ignore": task.ignore} if task.ignore else {})}
    recipe = make_recipe({"gossamer": 1, "stages": [{"prune": settings_}]}, "benchmark")
    batches = task.batches(seed)
    started = time.process_time()
    run_prune_stage(model, recipe.stages[0].step, StageInput(batches))
    return model, time.process_time() - started


def row_of(task, dense, where, name, goals, runs):
    values = [task.compare(dense, quality) for quality, _ in runs]
    return {
        "at": str(where),
        "method": name,
        "quality": statistics.mean(quality for quality, _ in runs),
        "value": statistics.mean(values),
        "low": min(values),
        "high": max(values),
        "draws": len(values),
        "cpu_seconds": statistics.median(seconds for _, seconds in runs),
        "goal": goals.get(name),
    }


def mark_best(rows, goals):
    """The best row of each column also answers for the goal of the best recipe."""
    for where, column in goals.items():
        here = [row for row in rows if row["at"] == str(where)]
        if here and "best" in column:
            min(here, key=lambda row: row["value"])["goal_best"] = column["best"]


def shown(task, dense, rows):
    made = table("zeros", "method", ">quality", f">{task.unit}", ">low", ">high", ">CPU s", "goal")
    for row in rows:
        goals = []
        for key, label in (("goal", ""), ("goal_best", "best ")):
            if row.get(key) is not None:
                verdict = "met" if row["value"] <= row[key] + 1e-9 else "missed"
                goals.append(f"{label}{row[key]:g} {verdict}")
        made.add_row(
            row["at"],
            row["method"],
            f"{row['quality']:.2f}",
            *(f"{row[key]:.2f}" for key in ("value", "low", "high")),
            f"{row['cpu_seconds']:.0f}",
            ", ".join(goals),
        )
    made.title = f"dense {dense:.2f}"
    return made


if __name__ == "__main__":
    main()
