# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M with a quarter of its feed-forward neurons active: MoE-fied, relufied, 2:4, dense.

    GOSSAMER_DATA=DIR python benchmarks/moefication.py FOLDER [--steps 0] [--only NAME] [--speed]

Calibrated on 32 windows of 256 tokens of the first 60 % of WikiText-2 valid; perplexity is that of
--windows windows of 512 tokens behind them, which nothing is chosen on. With --steps every arm gets
the same recovery on the calibration part, the dense model as teacher: none is trained longer than
another. FOLDER keeps the models; what is there is not made again. `given` is the part of what all
neurons give that the active ones give, on the calibration data. --speed times one token of every
model in turn, with the engine that runs it today: the native decoder in int8, or where that refuses
the model, compiled layers in transformers (int8, too).
"""

import copy
import json
import time
from pathlib import Path

import torch
from rich.table import Table

from gossamer import settings
from gossamer.errors import GossamerError
from gossamer.io import load, save
from gossamer.nn.rounding import can_round, round_layer
from gossamer.recipes import make_recipe
from gossamer.running.layers import compile as compile_model
from gossamer.runs import execute
from gossamer.runs.stages import StageInput
from gossamer.runs.stages.recover_data import samples_of_windows
from sparsify import SmolLM2, draw
from support.decoders import Gossamer, Transformers, race, rates
from support.options import give, machine, parser, progress

WINDOWS, TOKENS = 32, 256
# Name -> what is done; the part of the feed-forward neurons that a token has is in the title.
ARMS = {
    "dense": None,
    "moe 16, 3 routed + 1 shared": {"moefy": {"experts": 16, "top_k": 3, "shared": 1}},
    "relu, 75 % zeros": {"relufy": {"zeros": 0.75}},
    "2:4": {"prune": {"method": "sparsegpt", "pattern": "2:4"}},
    "moe 16, 4 routed": {"moefy": {"experts": 16, "top_k": 4}},
    "moe 64, 12 routed + 4 shared": {"moefy": {"experts": 64, "top_k": 12, "shared": 4}},
    "moe 16, 8 routed + 4 shared (75 %)": {"moefy": {"experts": 16, "top_k": 8, "shared": 4}},
    "relu": {"relufy": {"zeros": None}},
}
RECOVERY = {"batch": 8, "rate": 2e-4, "warmup": 0.05, "logits": 1.0, "freeze": "Embedding"}


def folder_of(root, name, steps):
    plain = "".join(c if c.isalnum() else "-" for c in name)
    return root / f"{plain}-{steps}"


def made(task, name, steps, root):
    """Notes of an arm; its model and figures are kept."""
    place = folder_of(root, name, steps)
    figures = place.with_suffix(".json")
    if figures.exists():
        return json.loads(figures.read_text())
    model, stage = copy.deepcopy(task.model), ARMS[name]
    ids = task.calibration[draw(len(task.calibration), WINDOWS, 0)][:, :TOKENS]
    batches = [{"input_ids": part} for part in ids.split(4)]
    stages = [] if stage is None else [stage]
    if steps and stage is not None:
        stages.append({"recover": {**RECOVERY, "steps": steps}})
    began, notes = time.process_time(), []
    if stages:
        recipe = make_recipe({"gossamer": 1, "stages": stages}, name)
        whole = task.calibration.reshape(-1, TOKENS)
        given = StageInput(samples=samples_of_windows(whole, named=True))
        notes = execute(recipe, model, batches, given=given, timed=False).notes
    seconds = time.process_time() - began
    row = {
        "arm": name,
        "steps": steps,
        "perplexity": task.quality(model),
        "cpu_s": seconds,
        "notes": notes,
    }
    save(model, place, beside={"tokenizer.json": task.tokenizer_file})
    figures.write_text(json.dumps(row))
    return row


def timed(root, names, steps, given):
    """Tokens per second of every arm, in turn."""
    contenders, engines = [], {}
    for name in names:
        place = folder_of(root, name, steps)
        model = load(place).eval()
        for path, layer in model.named_modules():
            if can_round(layer) and path != "lm_head":
                round_layer(layer, "int8")
        try:
            contenders.append(Gossamer(name, lambda held=model: held, "int8"))
            engines[name] = "native decoder, int8"
        except GossamerError as error:
            progress(f"{name}: {error}")
            fast = compile_model(model, tokens=1, precision="int8")
            contenders.append(Transformers(name, fast, torch.float32))
            engines[name] = "compiled layers, int8"
    seconds, _ = race(contenders, given.rounds, given.threads)
    best = {name: rates(times) for name, times in seconds.items()}
    return {name: (engines[name], *(part["after"] for part in best[name])) for name in names}


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--steps", type=int, default=0, help="of recovery, the same for all arms")
    options.add_argument("--only", default="", help="arms whose name begins with it, and dense")
    options.add_argument("--windows", type=int, default=40, help="that perplexity is measured on")
    options.add_argument("--speed", action="store_true", help="time what the folder holds")
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    given.folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in ARMS if name == "dense" or name.startswith(given.only)]
    task = SmolLM2(settings.data_dir(), quick=False)
    whole = len(task.evaluation)
    task.evaluation = task.evaluation[:: max(1, whole // given.windows)][: given.windows]
    rows = []
    for name in names:
        rows.append(made(task, name, given.steps, given.folder))
        progress(f"{name}: perplexity {rows[-1]['perplexity']:.2f} {rows[-1]['notes']}")
    speeds = timed(given.folder, names, given.steps, given) if given.speed else {}
    table = Table(title=f"SmolLM2-135M, {given.steps} steps of recovery")
    for column in ("arm", "perplexity", "over dense", "CPU s", "engine", "tokens/s", "median"):
        table.add_column(column, justify="right")
    for row in rows:
        engine, best, median = speeds.get(row["arm"], ("", float("nan"), float("nan")))
        table.add_row(
            row["arm"],
            f"{row['perplexity']:.2f}",
            f"{row['perplexity'] / rows[0]['perplexity']:.2f}",
            f"{row['cpu_s']:.0f}",
            engine,
            *(f"{rate:.1f}" if rate == rate else "-" for rate in (best, median)),
        )
    give(given, {"machine": machine(), "rows": rows, "speeds": speeds}, table)


if __name__ == "__main__":
    main()
