# SPDX-License-Identifier: Apache-2.0
"""Encoders end to end, from token ids to the last hidden state, beside other engines.

    python benchmarks/encoder.py [--model minilm bert | tiny] [--batch 1 8] [--threads 1 2]
        [--sparsity 0.5 0.8 0.9 0.95] [--quick] [--json [FILE]] [--html FILE]
        [--peers DIR] [--engines onnxruntime openvino deepsparse]
    GOSSAMER_DATA=DIR python benchmarks/encoder.py --minilm --prepare FOLDER
    GOSSAMER_DATA=DIR python benchmarks/encoder.py --minilm --prepared FOLDER

Sequences of 128 tokens, random weights, random unstructured masks on all linear layers. All engines
of a case take turns, minimum of many; on one thread by the time of the processor (see `turn/`).
Ratios are over ONNX Runtime fp32 dense, or torch where that is missing. `error` is the largest
difference to ONNX Runtime fp32 on the same weights over the largest value. `of roof` is the least
time that kept weights need at the measured FMA rate (int8: of the kernels' own int8 mix) and read
bandwidth, over the time taken. gossamer runs what `compile` gives under GOSSAMER_TUNE=off.

--minilm takes the real MiniLM instead, pruned on 512 pairs of STS-B train ("SparseGPT, match
dense"), with Spearman x 100 on STS-B dev beside each row. Pruning and scoring take minutes, the
race seconds: --prepare does the first and stops, --prepared does the second. Prunings that FOLDER
holds are used again, scores are always those of the kernels that --prepare ran. Quality of engines
other than gossamer is not computed: their fp32 is the same function, and the int8 of each is
another quantisation.
"""

import copy
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch

import gossamer
from gossamer import settings
from gossamer.ops import _native
from gossamer.report import write_html
from gossamer.running.bench import RaceEntry, model_run, race_encoders
from gossamer.running.encoder.arrays import encoder_arrays, find_base
from gossamer.running.rivals import (
    PRECISIONS,
    TITLES,
    EncoderEngine,
    EngineFailed,
    find_engine,
)
from support.encoder_cases import SEQUENCE, SHAPES, SPARSITIES, random_encoder
from support.encoder_page import Row, case_table, encoder_page, judge
from support.encoder_roof import least_ms, measure_roof, work_of
from support.options import give, machine, parser, progress

_QUICK_SPARSITIES = (0.8, 0.9)
_REAL_SPARSITIES = (0.5, 0.6, 0.7, 0.8)
# Engines that make use of zeros; others get the dense weights only.
_SPARSE_ENGINES = ("deepsparse",)
_SCORES = "scores.json"


def main():
    given = arguments()
    os.environ.setdefault("GOSSAMER_TUNE", "off")
    if given.prepare:
        prepare_real(given.prepare, given.quick)
    else:
        race_all(given)


def race_all(given):
    shape_names = ["minilm"] if given.minilm else given.model
    cases = [(n, b, t) for n in shape_names for b in given.batch for t in given.threads]
    before, roof = machine(), measure_roof()
    versions, rows, models, held = {}, [], {}, None
    for name, batch, threads in cases:
        if name != held:
            models, scores = (
                real_models(given.prepared)
                if given.minilm
                else (random_models(SHAPES[name], given.sparsity), {})
            )
            held = name
        torch.set_num_threads(threads)
        title = "MiniLM" if given.minilm else SHAPES[name].title
        progress(f"{title}, batch {batch}, {threads} thread(s): load {os.getloadavg()[0]:.1f}")
        with ExitStack() as stack:
            engines = start_engines(given, threads, stack)
            times = measure(models, batch, engines, given)
            versions |= {engine.title: engine.version for engine in engines.values()}
        work = work_of(SHAPES[name], batch, SEQUENCE)
        made = [
            Row(
                model=title,
                batch=batch,
                threads=threads,
                least_ms=least_ms(work, roof, time.precision, time.sparsity, threads),
                spearman=scores.get((time.precision, time.sparsity)),
                **time.to_dict(),
            )
            for time in times
        ]
        rows += made
        torch.set_num_threads(1)
    rows = judge(rows)
    document = {
        "machine": before,
        "versions": versions,
        "not_installed": [n for n in given.engines if find_engine(n, given.peers) is None],
        "load_at_end": f"{os.getloadavg()[0]:.1f}",
        "roof": asdict(roof),
        "rows": [row.to_dict() for row in rows],
    }
    if given.html:
        write_html(encoder_page(document, rows), given.html)
    tables = [
        case_table([r for r in rows if r.case == c]) for c in dict.fromkeys(r.case for r in rows)
    ]
    limits = (
        f"One thread: {roof.fma_gflops:.0f} GFLOP/s of FMAs, {roof.int8_gops:.0f} GOP/s of int8;"
        f" reading {roof.bandwidth_gbs:.1f} GB/s. "
        + ", ".join(f"{title} {version}" for title, version in versions.items())
        + f". Not installed: {', '.join(document['not_installed']) or 'none'}."
        + f" Load at the end {document['load_at_end']}."
    )
    give(given, document, *tables, limits)


def arguments():
    options = parser(__doc__.splitlines()[0], several_threads=True)
    options.add_argument("--model", nargs="+", choices=list(SHAPES), default=["minilm", "bert"])
    options.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    options.add_argument("--sparsity", nargs="+", type=float)
    options.add_argument("--engines", nargs="*", choices=list(PRECISIONS), default=list(PRECISIONS))
    options.add_argument("--html", type=Path, metavar="FILE", help="a page with pictures")
    options.add_argument("--minilm", action="store_true", help="the real MiniLM, with its quality")
    options.add_argument("--prepare", type=Path, metavar="FOLDER", help="prune and score, no race")
    options.add_argument("--prepared", type=Path, metavar="FOLDER", help="what --prepare made")
    options.add_argument("--rounds", type=int, default=5, help="turns of every engine, at least")
    given = options.parse_args()
    if given.minilm != bool(given.prepare or given.prepared):
        options.error("--minilm goes with --prepare FOLDER or --prepared FOLDER")
    given.sparsity = given.sparsity or (_QUICK_SPARSITIES if given.quick else SPARSITIES)
    given.threads = given.threads or ([1] if given.quick else [1, 2])
    given.seconds = given.seconds or (5.0 if given.quick else 20.0)
    given.rounds = min(given.rounds, 3) if given.quick else given.rounds
    return given


def start_engines(given, threads, stack):
    """The engines that are installed, by name; says which are not."""
    engines = {}
    for name in given.engines:
        python = find_engine(name, given.peers)
        if python is None:
            progress(
                f"{TITLES[name]}: not installed; benchmarks/peers/setup.sh {name} {given.peers}"
            )
            continue
        engines[name] = stack.enter_context(EncoderEngine(name, python, threads))
    return engines


def measure(models, batch, engines, given):
    """Times of all engines on one batch. `models`: by sparsity, 0 first."""
    generator = torch.Generator().manual_seed(2)
    words = models[0.0].get_input_embeddings().num_embeddings
    ids_BT = torch.randint(0, words, (batch, SEQUENCE), generator=generator)
    entries = []
    for sparsity, model in models.items():
        arrays = encoder_arrays(*find_base(model), SEQUENCE)
        expected = expected_of(model, arrays, ids_BT, engines)
        for name, engine in engines.items():
            if sparsity and name not in _SPARSE_ENGINES:
                continue
            for precision in PRECISIONS[name]:
                if precision == "bf16" and not has_bf16():
                    continue
                try:
                    made = RaceEntry.of_engine(
                        engine, (precision, sparsity), arrays, ids_BT, expected
                    )
                except EngineFailed as failure:
                    progress(f"{failure}; {precision} at {sparsity:.0%} left out")
                    continue
                entries.append(made)
                progress(f"  {made.engine} {precision} {sparsity:.0%}: error {made.error:.1e}")
        entries += own_entries(model, sparsity, ids_BT, expected)
    return race_encoders(entries, given.seconds, given.rounds)


def expected_of(model, arrays, ids_BT, engines):
    """Hidden states as ONNX Runtime gives them in fp32; torch where that is missing."""
    engine = engines.get("onnxruntime")
    if engine is None:
        return model_run(model, ids_BT)().numpy()
    hidden = engine.load("expected", arrays, ids_BT, "fp32")
    engine.drop("expected")
    return hidden


def own_entries(model, sparsity, ids_BT, expected):
    """What runs in this process: torch with the dense weights, gossamer with the pruned ones."""
    if not sparsity:
        made = [RaceEntry.of_model((RaceEntry.STOCK, "fp32", 0.0), model, ids_BT, expected)]
        if has_bf16():
            half = copy.deepcopy(model).bfloat16()
            made.append(RaceEntry.of_model((RaceEntry.STOCK, "bf16", 0.0), half, ids_BT, expected))
        return made
    made = []
    for precision in ("fp32", "int8"):
        fast = gossamer.compile(model, ids_BT.numel(), precision=precision)
        made.append(
            RaceEntry.of_model((RaceEntry.OWN, precision, sparsity), fast, ids_BT, expected)
        )
        progress(f"  {RaceEntry.OWN} {precision} {sparsity:.0%}: error {made[-1].error:.1e}")
    return made


def has_bf16():
    """Whether the CPU multiplies bf16."""
    return "avx512bf16" in _native.available_extensions()


def random_models(shape, sparsities):
    return {sparsity: random_encoder(shape, sparsity) for sparsity in (0.0, *sparsities)}


def prepare_real(folder, quick):
    """Prunings of MiniLM, and Spearman x 100 by "precision sparsity", into a folder."""
    from sparsify import METHODS, MiniLM, one_pruning

    data = settings.data_dir()
    if data is None:
        sys.exit("encoder: set GOSSAMER_DATA to the folder that holds stsb.")
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    task = MiniLM(data, quick)
    scores = {"fp32 0.0": task.quality(task.model)}
    for sparsity in _REAL_SPARSITIES:
        path = _pruned(folder, sparsity)
        if not path.exists():
            step = {**METHODS["SparseGPT, match dense"], "sparsity": sparsity}
            gossamer.save(one_pruning(task, step, seed=0)[0], path)
        for precision in ("fp32", "int8"):
            fast = gossamer.compile(gossamer.load(path), SEQUENCE, precision=precision)
            scores[f"{precision} {sparsity}"] = task.quality(fast)
            progress(f"{sparsity:.0%} {precision}: {scores[f'{precision} {sparsity}']:.2f}")
    (folder / _SCORES).write_text(json.dumps(scores, indent=1))


def real_models(folder):
    """MiniLM by sparsity, and Spearman x 100 by (precision, sparsity), as they were prepared."""
    from gossamer.cli.models import load_source

    stored = json.loads((folder / _SCORES).read_text())
    scores = {(p, float(s)): value for p, s, value in ((*k.split(), v) for k, v in stored.items())}
    models = {0.0: load_source("demo:minilm").model}
    return models | {s: gossamer.load(_pruned(folder, s)) for s in _REAL_SPARSITIES}, scores


def _pruned(folder, sparsity):
    return folder / f"minilm_{sparsity}"


if __name__ == "__main__":
    main()
