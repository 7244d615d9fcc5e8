# SPDX-License-Identifier: Apache-2.0
"""How long a text command takes to its first token, and what it holds: two source trees in one run.

    python benchmarks/start.py [--before OTHER/src] [--rounds 5] [--json]

Each start is a process of its own, `gossamer run complete MODEL --max-tokens 1`: of this tree with
an empty cache and with a full one, of the other tree as it is, in turn. Printed are the medians of
wall and CPU seconds, of the peak memory, and of what is anonymous at the end: mapped files are not.
`--model artifact` is the same model at 50 % zeros. `--before` is the `src` of another tree, with
its native module inside.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = r"""
import json, os, resource, sys
tree = sys.argv[1]
if tree:
    # An editable install finds its own tree before any path.
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    sys.path.insert(0, tree)
sys.stdout = open(os.devnull, "w")
from gossamer.cli.main import main
code = main(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_SELF)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
import gossamer
print("ROW" + json.dumps({
    "code": code, "cpu": used.ru_utime + used.ru_stime,
    "peak MiB": int(status["VmHWM"].split()[0]) / 1024,
    "anonymous MiB": int(status["RssAnon"].split()[0]) / 1024,
    "tree": gossamer.__file__,
}), file=sys.stderr)
"""
SAVE = """
import gossamer, sys, torch
from gossamer.cli.models import load_source
source = load_source("demo:smollm2")
gossamer.sparsify(source.model, sparsity=0.5, ignore=["lm_head"])
gossamer.save(source.model, sys.argv[1], beside=source.beside)
"""


def child(tree, model, cache):
    """One start; its figures."""
    words = ["run", "complete", model, "--prompt", "The capital of France is", "--max-tokens", "1"]
    begin = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CHILD, tree, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "GOSSAMER_CACHE": cache},
        timeout=250,
    )
    wall = time.perf_counter() - begin
    rows = [line for line in done.stderr.splitlines() if line.startswith("ROW")]
    if not rows:
        raise SystemExit(done.stderr)
    row = json.loads(rows[-1][3:])
    if row["code"] or (tree and not row["tree"].startswith(tree)):
        raise SystemExit(f"{row}\n{done.stderr}")
    return {**row, "wall": wall}


def measure(model, before, rounds):
    """Medians of every kind of start, interleaved."""
    found = {"before": [], "first": [], "second": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            cache = f"{folder}/{number}"
            if before:
                found["before"].append(child(before, model, f"{folder}/before"))
            found["first"].append(child("", model, cache))
            found["second"].append(child("", model, cache))
            stored = sum(path.stat().st_size for path in Path(cache, "engines").iterdir())
    keys = ("wall", "cpu", "peak MiB", "anonymous MiB")
    rows = {
        kind: {key: statistics.median(row[key] for row in each) for key in keys}
        for kind, each in found.items()
        if each
    }
    return {"starts": rows, "packed MiB": stored / 2**20}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=("gguf", "artifact"), default="gguf")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = "demo:smollm2"
        if args.model == "artifact":
            model = f"{folder}/half"
            subprocess.run([sys.executable, "-c", SAVE, model], check=True)  # noqa: S603
        result = measure(model, args.before, args.rounds)
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.model}: {result['packed MiB']:.0f} MiB packed, medians of {args.rounds}")
    print("| start | wall, s | CPU, s | peak, MiB | anonymous at the end, MiB |")
    print("|---|---|---|---|---|")
    for kind, row in result["starts"].items():
        peak, anonymous = row["peak MiB"], row["anonymous MiB"]
        print(f"| {kind} | {row['wall']:.2f} | {row['cpu']:.2f} | {peak:.0f} | {anonymous:.0f} |")


if __name__ == "__main__":
    main()
