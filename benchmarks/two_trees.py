# SPDX-License-Identifier: Apache-2.0
"""Two source trees in one run: what compiling, saving, loading and running cost before and after.

    python benchmarks/two_trees.py OLD/.venv/bin/python NEW/.venv/bin/python --rounds 5

Each measurement is a process of its own, old and new in turn, on one thread. Printed are medians
of CPU seconds and of peak memory, and the ratio old / new of the rounds.
MiniLM and SmolLM2 come from the packages of the extra [demo]; BERT-base has random weights.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

CHILD = r"""
import ctypes, gc, importlib, json, sys, tempfile, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
import gossamer
torch.set_num_threads(1)
torch.manual_seed(0)
what, model_name = sys.argv[1:3]

def load(name):
    import transformers
    transformers.logging.set_verbosity_error()
    if name == "bert-base":
        return transformers.BertModel(transformers.BertConfig()).eval()
    for home in ("gossamer.cli.models", "gossamer.runs.sources", "gossamer.cli.sources"):
        try:
            module = importlib.import_module(home)
        except ImportError:
            continue
        if hasattr(module, "load_source"):
            return module.load_source("demo:" + name).model.eval()
    raise SystemExit("no load_source")

def status(field):
    return int(Path("/proc/self/status").read_text().split(field + ":")[1].split()[0]) / 1024

place = Path(sys.argv[3]) / model_name
if what == "prepare":
    model = load(model_name)
    gossamer.sparsify(model, sparsity=0.8)
    gossamer.compact(model)
    gossamer.save(model, place)
    print("ROW{}")
    raise SystemExit
model = gossamer.load(place)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before, start = status("VmRSS"), time.process_time()
if what == "compile":
    fast = gossamer.compile(model, tokens=(128,))
    row = {"seconds": time.process_time() - start}
elif what == "save":
    with tempfile.TemporaryDirectory() as folder:
        gossamer.save(model, folder + "/a")
        row = {"seconds": time.process_time() - start}
        row["bytes"] = sum(f.stat().st_size for f in Path(folder, "a").glob("*.safetensors"))
else:
    del model
    gossamer.load(place)
    row = {"seconds": time.process_time() - start}
row["MiB"] = status("VmHWM") - before
print("ROW" + json.dumps(row))
"""
MODELS = ("minilm", "bert-base", "smollm2")
CASES = [(what, model) for model in MODELS for what in ("compile", "save", "load")]
KERNEL = r"""
import json, time, torch, gossamer
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
row = {}
for name, tokens, pattern, precision in (("panel", 128, "unstructured", "fp32"),
        ("few/indexed", 1, "unstructured", "fp32"), ("int8_panel", 128, "unstructured", "int8"),
        ("strip", 128, "block:4x4", "fp32")):
    model = nn.Sequential(nn.Linear(768, 768))
    gossamer.sparsify(model, sparsity=0.8, pattern=pattern)
    fast = gossamer.compile(model, tokens=(tokens,), kernel=name, precision=precision)
    x = torch.randn(tokens, 768)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(400):
            start = time.perf_counter()
            fast(x)
            best = min(best, time.perf_counter() - start)
    row[name] = best * 1e6
print("ROW" + json.dumps(row))
"""

ENGINE = r"""
import importlib, json, sys, time, torch, gossamer
from pathlib import Path
torch.set_num_threads(1)
place, row = Path(sys.argv[1]), {}

def best(call, times):
    found = float("inf")
    with torch.inference_mode():
        for _ in range(times):
            start = time.process_time()
            call()
            found = min(found, time.process_time() - start)
    return found * 1e3

ids = torch.arange(1000, 1128)[None]
for precision in ("fp32", "int8"):
    for title, name in (("MiniLM", "minilm"), ("BERT-base", "bert-base")):
        fast = gossamer.compile(gossamer.load(place / name), tokens=(128,), precision=precision)
        row[f"{title} {precision}"] = best(lambda: fast(input_ids=ids), 40)
for home in ("gossamer.running.decoder", "gossamer.run.decoder"):
    try:
        engines = importlib.import_module(home)
        break
    except ImportError:
        continue
engine = engines.DecoderEngine(gossamer.load(place / "smollm2"), "int8", context=256)
session = engine.session()
session.prompt(list(range(1000, 1032)))
row["SmolLM2 token int8"] = best(lambda: session.append(1000), 40)
nn, images = torch.nn, torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
torch.manual_seed(0)
layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()]
for _ in range(6):
    layers += [nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()
gossamer.sparsify(net, sparsity=0.85, targets=["Conv2d"])
for precision in ("fp32", "int8"):
    fast = gossamer.compile(net, example=images, precision=precision)
    row["network of 7 convolutions " + precision] = best(lambda: fast(images), 40)
print("ROW" + json.dumps(row))
"""


def run(python, code, *words):
    """The figures that a child of this interpreter prints."""
    # A fixed threshold: else the allocator's own habits are most of what a peak says.
    env = {"GOSSAMER_TUNE": "off", "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "200000"}
    env = {**os.environ, **env}
    done = subprocess.run(  # noqa: S603  (interpreters that the user names)
        [python, "-c", code, *words], env=env, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROW")]
    if not lines:
        raise SystemExit(f"{python} {words}: {done.stderr[-800:]}")
    return json.loads(lines[0][3:])


def compare(title, trees, rounds, code, *words):
    """One case on both trees, in turn: a row for each of its figures."""
    pairs = [[run(tree, code, *words) for tree in trees] for _ in range(rounds)]
    for name in pairs[0][0]:
        old, new = ([pair[i][name] for pair in pairs] for i in (0, 1))
        ratios = sorted(a / b for a, b in zip(old, new, strict=True) if b)
        yield {
            "case": f"{title}, {name}",
            "old": statistics.median(old),
            "new": statistics.median(new),
            "ratio": statistics.median(ratios) if ratios else None,
            "lowest": ratios[0] if ratios else None,
            "highest": ratios[-1] if ratios else None,
        }


def measure(trees, rounds, kernel_rounds):
    """All rows, as they are measured; no rounds leave out what is not a call."""
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            run(trees[0], CHILD, "prepare", model, folder)
        for what, model in CASES if rounds else ():
            yield from compare(f"{what} {model}", trees, rounds, CHILD, what, model, folder)
        yield from compare("ms of a call", trees, kernel_rounds, ENGINE, folder)
    yield from compare("us of a call", trees, kernel_rounds, KERNEL)


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("old", type=Path)
    options.add_argument("new", type=Path)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--kernel-rounds", type=int, default=20)
    options.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    given = options.parse_args()
    trees = [given.old.absolute(), given.new.absolute()]
    rows = []
    for row in measure(trees, given.rounds, given.kernel_rounds):
        rows.append(row)
        if not given.json:
            ratio = (
                "{ratio:.3f} ({lowest:.2f} to {highest:.2f})".format(**row) if row["ratio"] else "-"
            )
            print("| {case} | {old:.2f} | {new:.2f} | ".format(**row) + f"{ratio} |", flush=True)
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
