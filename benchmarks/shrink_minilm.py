# SPDX-License-Identifier: Apache-2.0
"""MiniLM shrunk on STS-B, then raced against dense int8 of every engine and of smaller models.

    GOSSAMER_DATA=DIR python benchmarks/shrink_minilm.py WORK [--small FILE] [--start L6]
        [--budget 40] [--search-only | --race-only]

The search fits and recovers on STS-B train, whose scores it may learn from, and chooses on a part
of train that it sets aside; nothing is chosen by dev, which gives the figures. Where the folder
also has `sts-test.csv.xz`, dev chooses and test gives the figures. A search that was stopped goes
on; --race-only takes the models that WORK holds.

Rivals learn from the same pairs with the same loss, steps and choices (`support/
trained_rivals.py`): dense MiniLM of six layers, and of three, both the published one (--small, see
`support/three_layers.py`) and one cut out of the six. --start names the dense model that a search
prunes; the race has all that were made. Beside the task's score stands recall of passages on text
that is not the task's (`support/passages.py`), which training on a task gives away.

All times are of one interleaved loop, one sequence of 128 tokens, one thread: medians of CPU time.
"""

import sys
from pathlib import Path

import torch

import gossamer
from gossamer import settings
from gossamer.cli.models import load_source
from gossamer.cli.shell import table
from gossamer.data.files import Pair, Texts
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer
from gossamer.search import Mask
from gossamer.search.rungs import RATES
from gossamer.search.workloads import load_workload
from support import stsb
from support.options import give, machine, parser, progress
from support.passages import read_passages, recall
from support.shrunk import HERE, Engines, Known, dense_entries, race, search_rows, shrunk_entry
from support.three_layers import CUT, published, with_layers
from support.trained_rivals import TRIES, Trainer

# Lost on the part that chooses; half of what may be lost in the end, since the best of several
# tries on few pairs looks better than it is.
MAX_LOSS = 0.005
GOALS = {"lost": 1.0, "faster": 1.5, "smaller": 3.0}
# Dense models; what is trained has learned from the scores of STS-B train.
PLAIN, SMALL, CUT_OUT, TRAINED = "L6", "L3", "cut", "-trained"
STARTS = (PLAIN, PLAIN + TRAINED, SMALL + TRAINED, CUT_OUT + TRAINED)
TITLES = {
    PLAIN: "MiniLM-L6",
    SMALL: "MiniLM-L3, published",
    CUT_OUT: "3 layers of MiniLM-L6",
}


def main():
    given = arguments()
    folder = settings.data_dir()
    if folder is None:
        sys.exit("shrink_minilm: set GOSSAMER_DATA to the folder that holds stsb and wikitext2.")
    torch.set_num_threads(given.threads)
    source = load_source("demo:minilm")
    tokenizer = make_tokenizer(source.beside[TOKENIZER_FILE])
    train, dev = (pairs_of(folder, split) for split in ("train", "dev"))
    has_test = (folder / "stsb" / "sts-test.csv.xz").exists()
    choose, report = (dev, pairs_of(folder, "test")) if has_test else (None, dev)
    document = {"machine": machine(), "figures on": "test" if has_test else "dev"}
    work = load_workload(source.model, tokenizer, train, choose=choose, report=report)
    dense, document["training"] = dense_models(source.model, work, given)
    if not given.race_only:
        result = gossamer.shrink(
            dense[given.start],
            train,
            artifact(given.work, given.start),
            tokenizer=tokenizer,
            max_loss=given.max_loss,
            masks=[Mask("unstructured", sparsity) for sparsity in given.sparsities],
            rates=given.rates,
            budget_minutes=given.budget,
            valid_data=choose,
            test_data=report,
            beside=source.beside,
            on_trial=told,
            say=progress,
        )
        document["search"] = result.to_dict()
        progress(f"{result.chosen.name}: {result.quality:.2f}, dense {result.dense_quality:.2f}")
        if given.search_only:
            give(given, document, search_rows(result))
            return
    passages = read_passages(folder)
    measures = {
        "quality": lambda entry: work.reporting.measure(entry.run),
        # Other engines compute the same numbers up to their rounding, and take long.
        "recall": lambda e: recall(e.run, *passages, tokenizer) if e.engine in HERE else None,
    }
    known = Known(given.work / "qualities.json", measures)
    with Engines(given.engines, given.peers, given.threads) as engines:
        entries = [e for name in dense for e in dense_entries(name, dense[name], work, engines)]
        for start in STARTS:
            path = artifact(given.work, start)
            if path.exists():
                entries.append(shrunk_entry(start, path, work))
        document["race"], document["busy"] = race(entries, given.seconds or 40, known)
        document["engines"] = engines.versions
    half = 2 * sum(parameter.numel() for parameter in source.model.parameters())
    document["verdicts"] = [judge(document["race"], row, half) for row in ours(document["race"])]
    give(given, document, shown(document), *map(sentence, document["verdicts"]))


def arguments():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("work", type=Path, help="folder for candidates and the models")
    options.add_argument("--small", type=Path, help="ONNX file or wheel of the published L3")
    options.add_argument("--start", choices=STARTS, default=PLAIN, help="what is pruned")
    options.add_argument("--budget", type=float, default=40, help="minutes of the search")
    options.add_argument("--max-loss", type=float, default=MAX_LOSS, help="of the search")
    options.add_argument("--sparsities", type=float, nargs="+", default=[0.8, 0.85, 0.9])
    options.add_argument("--rates", type=float, nargs="+", default=RATES, help="at most three")
    options.add_argument("--tries", type=int, default=len(TRIES), help="of training a rival")
    options.add_argument("--engines", nargs="*", default=["onnxruntime", "openvino"])
    options.add_argument("--race-only", action="store_true", help="take the models that are there")
    options.add_argument("--search-only", action="store_true", help="race later, in a quiet hour")
    return options.parse_args()


def artifact(work, start):
    """Where the model is that a search made of a dense one."""
    return work / ("model" if start == PLAIN else f"model-{start}")


def dense_models(model, work, given):
    """(dense models by name, what was tried in training them); trained once, then kept."""
    folder = given.work / "rivals"
    folder.mkdir(parents=True, exist_ok=True)
    plain = {PLAIN: model}
    if given.small is None:
        progress("no --small: the published model of three layers takes no part.")
    else:
        plain[SMALL] = published(given.small, model)
    made, tried, trainer = dict(plain), [], Trainer(work, folder)
    for name, each in {**plain, CUT_OUT: with_layers(model, CUT)}.items():
        # Half a model is no teacher of itself.
        teacher = model if name == CUT_OUT else None
        made[name + TRAINED], steps = trainer.best(name, each, teacher, TRIES[: given.tries])
        tried += steps
    return made, tried


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


def ours(rows):
    """What searches made."""
    return [row for row in rows if row["zeros"]]


def best_int8(rows, quality=float("-inf"), model=None):
    """The fastest dense int8 of any engine that scores no worse; None if there is none."""
    fit = [
        row
        for row in rows
        if row["precision"] == "int8" and not row["zeros"] and row["quality"] >= quality
        if model in (None, row["model"])
    ]
    return min(fit, key=lambda row: row["ms"], default=None)


def judge(rows, mine, half):
    """One pruned model against every dense one, trained or not, of six layers or of three.

    Args:
        rows: of the race.
        mine: the pruned one.
        half: bytes of MiniLM-L6 in fp16.
    """
    dense = {row["model"]: row for row in rows if row["engine"] == "torch"}
    rival = best_int8(rows, mine["quality"])
    found = {
        "lost": dense[PLAIN]["quality"] - mine["quality"],
        "lost to trained": dense[PLAIN + TRAINED]["quality"] - mine["quality"],
        "faster than MiniLM-L6": best_int8(rows, model=PLAIN)["ms"] / mine["ms"],
        "faster": rival["ms"] / mine["ms"] if rival else None,
        "smaller": half / mine["bytes"],
    }
    met = {
        "lost": found["lost"] <= GOALS["lost"],
        "faster": rival is None or found["faster"] >= GOALS["faster"],
        "smaller": found["smaller"] >= GOALS["smaller"],
    }
    return {"model": title(mine), "rival": rival and title(rival), "found": found, "met": met}


def title(row):
    """A model as people call it."""
    base = row["model"].removesuffix(TRAINED)
    words = TITLES[base] + (", trained" if row["model"].endswith(TRAINED) else "")
    return f"{words}, shrunk" if row["zeros"] else f"{words}, {row['engine']} {row['precision']}"


def learned(row):
    """Whether it has seen scores of the task."""
    return "yes" if row["zeros"] or row["model"].endswith(TRAINED) else "no"


def shown(document):
    made = table(
        "model", "trained on STS-B", ">Spearman x 100", ">recall@1", ">recall@10", ">ms",
        ">over dense int8", ">MB",
    )  # fmt: skip
    rows = document["race"]
    reference = best_int8(rows, model=PLAIN)
    for row in rows:
        recalls = (
            ["", ""] if row["recall"] is None else [f"{r:.1f}" for r in row["recall"].values()]
        )
        made.add_row(
            title(row), learned(row), f"{row['quality']:.2f}", *recalls, f"{row['ms']:.2f}",
            f"{reference['ms'] / row['ms']:.2f}x", f"{row['bytes'] / 1e6:.1f}",
        )  # fmt: skip
    made.title = (
        f"Spearman on STS-B {document['figures on']}; recall on WikiText-2, which nothing was"
        f" trained on; speed over {title(reference)}"
    )
    return made


def sentence(verdict):
    """What came out for one pruned model."""
    found, met = verdict["found"], verdict["met"]
    speed = "no dense int8 model scores as well"
    if verdict["rival"]:
        speed = f"{found['faster']:.2f}x {verdict['rival']}, the fastest dense int8 that scores"
        speed += f" no worse (1.5: {_word(met['faster'])})"
    return (
        f"{verdict['model']}: {found['lost']:+.2f} points lost against dense (at most 1:"
        f" {_word(met['lost'])}), {found['lost to trained']:+.2f} against dense trained on the same"
        f" pairs; {speed}; {found['faster than MiniLM-L6']:.2f}x the fastest dense int8 of the six"
        f" layers; {found['smaller']:.2f}x smaller than fp16 (3: {_word(met['smaller'])})"
    )


def _word(is_met):
    return "met" if is_met else "missed"


if __name__ == "__main__":
    main()
