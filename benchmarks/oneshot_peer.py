# SPDX-License-Identifier: Apache-2.0
"""SparseGPT at 50 % on SmolLM2-135M, beside llm-compressor's `oneshot`: time, memory, perplexity.

    GOSSAMER_DATA=DIR python benchmarks/oneshot_peer.py --peers DIR [--pattern 2:4] [--rounds 1]

Both prune the same 210 matrices of the same checkpoint on the same 64 windows of 512 tokens, each
in a process of its own, one after the other, and the same code evaluates what they leave. The
environment of the peer is made by benchmarks/peers/setup.sh llmcompressor DIR. Our process also
plans the stage first: the planned peak of memory stands beside the measured one.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from gossamer import settings
from gossamer.cli.models import load_source
from gossamer.cli.shell import table
from gossamer.pruning.calibration.flow import as_batches
from gossamer.recipes import make_recipe
from gossamer.runs.pruning.plan import plan_stage
from gossamer.runs.stages import StageInput
from gossamer.runs.stages.prune import run_prune_stage
from sparsify import SmolLM2
from support.options import give, machine, parser, progress

SPEED_GOAL = 1.5
PLAN_GOAL = 0.15
PEER_SCRIPT = Path(__file__).resolve().parent / "peers" / "run_llmcompressor.py"


def prune_here(model_dir, windows, out, pattern):
    """What the child process does: plan, prune, save; its cost as JSON."""
    model = load_source(str(model_dir)).model
    ids = load_file(windows)["input_ids"]
    batches = as_batches([{"input_ids": part} for part in ids.split(4)], "benchmark")
    target = {"sparsity": 0.5} if pattern == "unstructured" else {"pattern": pattern}
    stage = {"prune": {"method": "sparsegpt", **target}}
    step = make_recipe({"gossamer": 1, "stages": [stage]}, "benchmark").stages[0].step
    planned = plan_stage(model, step, batches).peak_bytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.perf_counter()
    run_prune_stage(model, step, StageInput(batches))
    cost = {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "peak_before": before * 1024,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "planned_peak": planned,
    }
    weights = {name: value for name, value in model.state_dict().items() if "mask" not in name}
    save_file(unshared(weights), Path(out) / "model.safetensors")
    print(json.dumps(cost))


def unshared(weights):
    """Tied tensors once, everything contiguous."""
    seen, kept = set(), {}
    for name, value in weights.items():
        if value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            kept[name] = value.contiguous()
    return kept


def run(command, threads):
    """The JSON line at the end of what a child prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(  # noqa: S603  (our script, the user's environment)
        [str(part) for part in command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command[1]} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def perplexity_of(task, weights_dir):
    """Of the dense model with these weights in it."""
    weights = load_file(Path(weights_dir) / "model.safetensors")
    task.model.load_state_dict(weights, strict=False)
    return task.quality(task.model)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--child":
        model_dir, windows, out, pattern, threads = sys.argv[2:]
        torch.set_num_threads(int(threads))
        prune_here(model_dir, windows, out, pattern)
        return
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--pattern", default="unstructured", choices=["unstructured", "2:4"])
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--windows", type=int, default=64)
    given = options.parse_args()
    folder = settings.data_dir()
    if folder is None or given.peers is None:
        sys.exit("oneshot_peer: set GOSSAMER_DATA, and GOSSAMER_PEERS or --peers.")
    python = given.peers / "llmcompressor" / "bin" / "python"
    torch.set_num_threads(given.threads)
    task = SmolLM2(folder, given.quick)
    described = machine()
    dense = task.quality(task.model)
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        windows = place / "windows.safetensors"
        count = len(task.calibration)
        every = [j * count // given.windows for j in range(given.windows)]
        save_file({"input_ids": task.calibration[every].contiguous()}, windows)
        task.model.save_pretrained(place / "dense")
        (place / "dense" / "tokenizer.json").write_bytes(task.tokenizer_file)
        for name in ("ours", "peer"):
            (place / name).mkdir()
        costs = {"ours": [], "peer": []}
        zeros = "0:0" if given.pattern == "unstructured" else given.pattern
        for number in range(given.rounds):
            progress(f"round {number}: gossamer")
            child = [sys.executable, __file__, "--child", place / "dense", windows, place / "ours"]
            costs["ours"].append(run([*child, given.pattern, given.threads], given.threads))
            progress(f"round {number}: llm-compressor")
            peer = [python, PEER_SCRIPT, place / "dense", windows, place / "peer"]
            settings_ = ["--pattern", zeros, "--threads", given.threads]
            costs["peer"].append(run([*peer, *settings_], given.threads))
        quality = {name: perplexity_of(task, place / name) for name in costs}
    document = {"machine": described, "dense": dense, "quality": quality, "costs": costs}
    give(given, document, shown(dense, quality, costs))


def shown(dense, quality, costs):
    made = table("", ">perplexity", ">x dense", ">CPU s", ">wall s", ">peak GiB", ">planned GiB")
    made.title = f"dense {dense:.2f}"
    for name, title in (("ours", "gossamer"), ("peer", "llm-compressor oneshot")):
        runs = costs[name]
        planned = runs[0].get("planned_peak")
        made.add_row(
            title,
            f"{quality[name]:.2f}",
            f"{quality[name] / dense:.3f}",
            *(f"{statistics.median(run[key] for run in runs):.0f}" for key in
              ("cpu_seconds", "wall_seconds")),
            f"{max(run['peak'] for run in runs) / 2**30:.2f}",
            "-" if planned is None else f"{planned / 2**30:.2f}",
        )  # fmt: skip
    ratios = [
        peer["cpu_seconds"] / ours["cpu_seconds"]
        for ours, peer in zip(costs["ours"], costs["peer"], strict=True)
    ]
    off = costs["ours"][0]["peak"] / costs["ours"][0]["planned_peak"] - 1
    made.caption = (
        f"{min(ratios):.2f}-{max(ratios):.2f}x less CPU time (goal {SPEED_GOAL}),"
        f" peak {off:+.0%} of the plan (goal +-{PLAN_GOAL:.0%})"
    )
    return made


if __name__ == "__main__":
    main()
