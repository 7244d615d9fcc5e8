# SPDX-License-Identifier: Apache-2.0
"""MiniLM shrunk on STS-B, then raced against dense int8 of every engine that is installed.

    GOSSAMER_DATA=DIR python benchmarks/shrink_minilm.py WORK [--budget 40] [--race-only]

The search fits and recovers on STS-B train, whose scores it may learn from, and chooses on a part
of train that it sets aside; nothing is chosen by dev, which gives the figures. Where the folder
also has `sts-test.csv.xz`, dev chooses and test gives the figures. A search that was stopped goes
on; --race-only takes the model that WORK/model holds. All times are of one interleaved loop, one
sequence of 128 tokens, one thread.
"""

import sys
from pathlib import Path

import torch

import gossamer
from gossamer import settings
from gossamer.cli.output import table
from gossamer.cli.sources import load_source
from gossamer.io.samples import TOKENIZER_FILE, Pair, Texts, make_tokenizer
from gossamer.search.candidates import Mask
from gossamer.search.contenders import EngineContenders
from gossamer.search.load_workload import load_workload
from gossamer.search.rungs import RATES
from gossamer.search.trial import tensor_bytes
from support import stsb
from support.options import give, machine, parser, progress
from support.shrunk import Known, final_race, search_rows

# Lost on the part that chooses; half of what may be lost in the end, since the best of several
# tries on few pairs looks better than it is.
MAX_LOSS = 0.005
GOALS = {"lost": 1.0, "faster": 1.5, "smaller": 3.0}


def main():
    given = arguments()
    folder = settings.data_dir()
    if folder is None:
        sys.exit("shrink_minilm: set GOSSAMER_DATA to the folder that holds stsb.")
    torch.set_num_threads(given.threads)
    source = load_source("demo:minilm")
    tokenizer = make_tokenizer(source.beside[TOKENIZER_FILE])
    train, dev = (pairs_of(folder, split) for split in ("train", "dev"))
    has_test = (folder / "stsb" / "sts-test.csv.xz").exists()
    choose, report = (dev, pairs_of(folder, "test")) if has_test else (None, dev)
    document = {"machine": machine(), "figures on": "test" if has_test else "dev"}
    if not given.race_only:
        result = gossamer.shrink(
            source.model,
            train,
            given.work / "model",
            tokenizer=tokenizer,
            max_loss=MAX_LOSS,
            masks=[Mask("unstructured", sparsity) for sparsity in given.sparsities],
            rates=given.rates,
            budget_minutes=given.budget,
            valid_data=choose,
            test_data=report,
            beside=source.beside,
            on_trial=told,
            say=progress,
        )
        document |= {"search": result.to_dict(), "precision": result.chosen.precision}
        progress(f"{result.chosen.name}: {result.quality:.2f}, dense {result.dense_quality:.2f}")
        if given.search_only:
            give(given, document, search_rows(result))
            return
    work = load_workload(source.model, tokenizer, train, choose=choose, report=report)
    known = Known(work, given.work / "model", given.work / "qualities.json")
    with EngineContenders(given.peers, given.threads, progress, given.engines) as engines:
        rows = final_race(work, given.work / "model", engines, given.seconds or 20, known)
    document["race"] = rows
    judge(document, given.work / "model", source.model)
    give(given, document, shown(document))


def arguments():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("work", type=Path, help="folder for candidates and the model")
    options.add_argument("--budget", type=float, default=40, help="minutes of the search")
    options.add_argument("--sparsities", type=float, nargs="+", default=[0.8, 0.85, 0.9])
    options.add_argument("--rates", type=float, nargs="+", default=RATES, help="at most three")
    options.add_argument("--engines", nargs="*", default=["onnxruntime", "openvino"])
    options.add_argument("--race-only", action="store_true", help="take the model that is there")
    options.add_argument("--search-only", action="store_true", help="race later, in a quiet hour")
    return options.parse_args()


def pairs_of(folder, split):
    pairs = tuple(Pair(*pair) for pair in stsb.read_pairs(folder, split))
    texts = tuple(text for pair in pairs for text in (pair.first, pair.second))
    return Texts(Path(f"sts-{split}"), "\n".join(texts), texts, pairs)


def told(trial):
    for point in trial.points:
        progress(
            f"{point.name}: {point.quality:.2f}, {100 * point.lost:+.2f} points lost,"
            f" {point.ms:.2f} ms, {point.size / 1e6:.1f} MB ({trial.seconds:.0f} s)"
        )


def judge(document, path, model):
    """The three goals; the rival is the fastest dense int8 that scores no worse."""
    rows = {row["name"]: row for row in document["race"]}
    ours, dense = rows["shrunk"], rows["dense fp32"]
    rivals = [
        row
        for row in document["race"]
        if row["name"].endswith("int8") and row["quality"] >= ours["quality"]
    ]
    rival = min(rivals or [dense], key=lambda row: row["ms"])
    half = 2 * sum(parameter.numel() for parameter in model.parameters())
    found = {
        "lost": dense["quality"] - ours["quality"],
        "faster": rival["ms"] / ours["ms"],
        "smaller": half / tensor_bytes(path),
    }
    document |= {"rival": rival["name"], "found": found, "goals": GOALS}
    document["met"] = {
        "lost": found["lost"] <= GOALS["lost"],
        "faster": found["faster"] >= GOALS["faster"],
        "smaller": found["smaller"] >= GOALS["smaller"],
    }


def shown(document):
    made = table("model", ">Spearman x 100", ">ms", ">over ORT fp32", ">MB")
    rows = document["race"]
    first = next((row for row in rows if row["name"] == "ONNX Runtime fp32"), rows[0])
    for row in rows:
        score = "" if row["quality"] is None else f"{row['quality']:.2f}"
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}"
        made.add_row(
            row["name"], score, f"{row['ms']:.2f}",
            f"{first['ms'] / row['ms']:.2f}x", size,
        )  # fmt: skip
    found, met = document["found"], document["met"]
    made.title = (
        f"on {document['figures on']}: {found['lost']:+.2f} points lost (at most 1:"
        f" {_word(met['lost'])}), {found['faster']:.2f}x {document['rival']} (1.5:"
        f" {_word(met['faster'])}), {found['smaller']:.2f}x smaller than fp16 (3:"
        f" {_word(met['smaller'])})"
    )
    return made


def _word(is_met):
    return "met" if is_met else "missed"


if __name__ == "__main__":
    main()
