# SPDX-License-Identifier: Apache-2.0
"""What training holds in memory: bytes per parameter by mode, and the peak of whole processes.

    python benchmarks/training_memory.py [--json FILE] [--quick] [--sparsity 0.8 0.9 0.95]
        [--process-sparsity 0.9] [--no-process]

First table: a GPT with 25 million pruned parameters makes one step in every mode, and the storages
of weights, gradients, masters, moments, positions and dense copies are walked, beside the formula
and the most that is allowed. Bytes are of the pruned weights, per entry of the dense weights; the
whole model, embeddings and norms included, is shown beside them.

Second table: a GPT with 302 million parameters is trained for some steps, each case in a process of
its own that builds, prunes and trains the model, and the peak of its resident memory (VmHWM) is
read. Same batch, blocks recomputed in backward. --quick takes a tenth of the model.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.table import Table

from gossamer.training.memory import measure
from gossamer.training.memory.formulas import VARIANTS
from support.gpt import CASES, SIZES, build_gpt, prepare, train_step
from support.options import give, machine, parser, progress

# Bytes per parameter allowed at a kept fraction f.
ALLOWED = {
    "fp32": lambda f: 16 * f + 0.3,
    "exact": lambda f: 14 * f + 0.15,
    "8bit": lambda f: 7.1 * f + 0.15,
    "resident": lambda f: 12 * f + 2.2,
}
PEAK_ALLOWED = 0.4


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--sparsity", type=float, nargs="+", default=(0.8, 0.9, 0.95))
    options.add_argument("--process-sparsity", type=float, default=0.9)
    options.add_argument("--process-cases", nargs="+", default=("dense", "fp32", "exact", "8bit"))
    options.add_argument("--steps", type=int, default=2)
    options.add_argument("--no-process", action="store_true")
    options.add_argument("--child", nargs=3, metavar=("CASE", "SIZE", "SPARSITY"))
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.child:
        case, size, sparsity = arguments.child
        child(case, size, float(sparsity), arguments.steps)
        return
    states = [state_of(case, s) for s in arguments.sparsity for case in ALLOWED]
    document = {"machine": machine(), "states": states, "processes": []}
    shown = [state_table(states)]
    if not arguments.no_process:
        size = "25M" if arguments.quick else "300M"
        for case in arguments.process_cases:
            found = in_process(case, size, arguments)
            progress(f"{case}: peak {found['peak_mib']:.0f} MiB, {found['seconds']:.0f} s a step")
            document["processes"].append(found)
        shown.append(process_table(document["processes"]))
    give(arguments, document, *shown)


def state_of(case, sparsity):
    """One step of one case, and what it holds before gradients are dropped."""
    torch.manual_seed(0)
    model = build_gpt("25M", case, sparsity)
    optimizer = prepare(model, case)
    train_step(model, optimizer, torch.randint(256, (1, 33)))
    use = measure(model, optimizer)
    density = use.pruned.density
    found = {
        "case": case,
        "sparsity": sparsity,
        "pruned_parameters": use.pruned.num_parameters,
        "bytes_per_parameter": use.pruned.bytes_per_parameter,
        "formula": str(VARIANTS[case]),
        "predicted": VARIANTS[case].bytes_per_parameter(density),
        "allowed": ALLOWED[case](1 - sparsity),
        "by_kind": {k: v / use.pruned.num_parameters for k, v in use.pruned.measured.items()},
        "whole_model": use.total_bytes / (use.pruned.num_parameters + use.rest.num_parameters),
    }
    if case == "resident":
        published = measure(model, optimizer, accounting="samo")
        found["samo"] = published.pruned.bytes_per_parameter
    progress(f"{sparsity:.0%} {case}: {found['bytes_per_parameter']:.3f}")
    return found


def state_table(states):
    millions = states[0]["pruned_parameters"] / 1e6
    table = Table(title=f"bytes per parameter, GPT, {millions:.1f} M pruned; dense holds 20")
    for heading in ("sparsity", "state", "formula", "predicted", "measured", "allowed", "", "SAMO"):
        table.add_column(heading, justify="right")
    table.add_column("whole model", justify="right")
    for row in states:
        fits = row["bytes_per_parameter"] <= row["allowed"]
        table.add_row(
            f"{row['sparsity']:.0%}",
            row["case"],
            row["formula"],
            f"{row['predicted']:.3f}",
            f"{row['bytes_per_parameter']:.3f}",
            f"{row['allowed']:.3f}",
            "ok" if fits else "missed",
            f"{row['samo']:.3f}" if "samo" in row else "",
            f"{row['whole_model']:.3f}",
        )
    return table


def in_process(case, size, arguments):
    sparsity = 0.0 if case.startswith("dense") else arguments.process_sparsity
    command = [sys.executable, __file__, "--child", case, size, str(sparsity)]
    command += ["--threads", str(arguments.threads), "--steps", str(arguments.steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{case}: {done.stderr}")
    return json.loads(done.stdout)


def child(case, size, sparsity, steps):
    """Build, prune and train; print the peak of this process."""
    torch.manual_seed(0)
    model = build_gpt(size, case, sparsity, recompute=True)
    optimizer = prepare(model, case)
    built = peak_mib()
    start = time.perf_counter()
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        train_step(model, optimizer, torch.randint(256, (1, 257), generator=generator))
    found = {
        "case": case,
        "mode": CASES[case].mode,
        "sparsity": sparsity,
        "parameters": SIZES[size]["num_layers"] * 12 * SIZES[size]["width"] ** 2,
        "peak_mib": peak_mib(),
        "peak_after_building_mib": built,
        "seconds": (time.perf_counter() - start) / steps,
    }
    print(json.dumps(found))


def peak_mib():
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def process_table(rows):
    millions = rows[0]["parameters"] / 1e6
    table = Table(
        title=f"peak resident memory of a process, GPT, {millions:.0f} M, 256 tokens, recompute on"
    )
    for heading in ("state", "mode", "sparsity", "peak MiB", "of dense", "after building MiB", ""):
        table.add_column(heading, justify="right")
    dense = next((row["peak_mib"] for row in rows if row["case"] == "dense"), float("nan"))
    for row in rows:
        share = row["peak_mib"] / dense
        verdict = ""
        if row["sparsity"] > 0:
            verdict = "ok" if share <= PEAK_ALLOWED else "missed"
        table.add_row(
            row["case"],
            row["mode"],
            f"{row['sparsity']:.0%}",
            f"{row['peak_mib']:,.0f}",
            f"{share:.1%}",
            f"{row['peak_after_building_mib']:,.0f}",
            verdict,
        )
    return table


if __name__ == "__main__":
    main()
