# SPDX-License-Identifier: Apache-2.0
"""A GPT with experts beside its dense twin of equal arithmetic, and a dense one of equal weights.

    python benchmarks/switch.py [--steps 400] [--seeds 0 1] [--experts 8] [--log FILE.jsonl]

Bytes of the first 2 MB of enwik8 (`GOSSAMER_DATA`/enwik8-sample); the last tenth is measured on and
trained on by nobody. All arms see the same batches in the same order, with the same optimizer and
rates; nothing is chosen by the result. Runs are those of `gossamer train`. A run that stands in the
log is not repeated. CPU time is that of this process, training alone.
"""

import argparse
import json
import lzma
import statistics
import tempfile
import time
from pathlib import Path

import torch

import gossamer
from gossamer import settings

WIDTH, LAYERS, CONTEXT, BATCH = 128, 4, 128, 16
# Dense, with about the weights of eight experts in every other block.
WIDE = 232


def recipe(arm, steps, seed, experts):
    model = {"name": "gpt", "width": WIDTH, "layers": LAYERS, "heads": 4, "context": CONTEXT}
    if arm == "wide":
        model["width"] = WIDE
    if arm == "switch":
        model["experts"] = {"count": experts, "top_k": 1, "every": 2}
    train = {
        "task": "text",
        "model": model,
        "steps": steps,
        "batch": BATCH,
        "clip": 1.0,
        "optimizer": {"name": "adamw", "lr": 0.001, "weight_decay": 0.01},
        "rate": {"shape": "cosine", "warmup": 0.05},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "seed": seed,
    }
    return {"gossamer": 1, "description": arm, "stages": [{"train": train}]}


def run(arm, steps, seed, experts, text, folder):
    out = Path(folder) / f"{arm}-{seed}"
    began = time.process_time()
    result = gossamer.train(recipe(arm, steps, seed, experts), data=text, out=out)
    seconds = time.process_time() - began
    lines = (Path(folder) / f"{arm}-{seed}.run" / "metrics.jsonl").read_text().splitlines()
    loads = [json.loads(line).get("moe_load") for line in lines]
    model = gossamer.load(out)
    return {
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "bits": result.quality["bits_per_byte"],
        "cpu_s": seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "load": next((load for load in reversed(loads) if load is not None), None),
    }


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options.add_argument("--experts", type=int, default=8)
    options.add_argument("--arms", nargs="+", default=["dense", "switch", "wide"])
    options.add_argument("--log", type=Path, default=Path("switch.jsonl"))
    options.add_argument("--json", action="store_true", help="the rows as data, no table")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    packed = Path(settings.data_dir()) / "enwik8-sample" / "enwik8_first2MB.xz"
    known = arguments.log.read_text().splitlines() if arguments.log.exists() else []
    rows = [json.loads(line) for line in known]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "enwik8.txt"
        text.write_bytes(lzma.decompress(packed.read_bytes()))
        for seed in arguments.seeds:
            for arm in arguments.arms:
                key = (arm, seed, arguments.steps)
                if any((row["arm"], row["seed"], row["steps"]) == key for row in rows):
                    continue
                rows.append(run(arm, arguments.steps, seed, arguments.experts, text, folder))
                with arguments.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(rows[-1]) + "\n")
    rows = [row for row in rows if row["steps"] == arguments.steps]
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| arm | weights | bits per byte, by seed | mean | CPU s | over dense | load |")
    print("|---|---|---|---|---|---|---|")
    dense = [row["cpu_s"] for row in rows if row["arm"] == "dense"]
    for arm in arguments.arms:
        own = [row for row in rows if row["arm"] == arm]
        if not own:
            continue
        bits = [row["bits"] for row in own]
        seconds = statistics.mean(row["cpu_s"] for row in own)
        load = own[0]["load"]
        print(
            f"| {arm} | {own[0]['parameters']:,} | {', '.join(f'{bit:.3f}' for bit in bits)} |"
            f" {statistics.mean(bits):.3f} | {seconds:.0f} |"
            f" {seconds / statistics.mean(dense):.2f} | {'-' if load is None else f'{load:.2f}'} |"
        )


if __name__ == "__main__":
    main()
