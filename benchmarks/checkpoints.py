# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint costs: the stall of a save, its bytes and memory, the way back.

    python benchmarks/checkpoints.py [--json] [--width 256] [--layers 6] [--rounds 5] [--threads 1]

A GPT with AdamW, masked at 90 % and then compact. Each round takes a step, saves at once, saves in
the background and reads back, so that all figures see the same load; minimum over rounds. The stall
of a background save is the copy of the state; its write ends while training goes on.
"""

import resource
import tempfile
import time
from pathlib import Path

import torch
from rich.table import Table
from torch import nn

import gossamer
from gossamer.training.checkpoint import CheckpointStore, CheckpointWriter, Snapshot
from gossamer.training.checkpoint.random_state import capture_random
from gossamer.training.checkpoint.restoring import layer_forms
from gossamer.zoo import GPT
from support import options

VOCABULARY, BATCH, CONTEXT = 256, 4, 64


def timed(work):
    """Seconds of one call, and what it gave."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def peak_bytes():
    """The most this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(model, optimizer, folder, rounds):
    ids = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))
    store = CheckpointStore(folder)
    background = CheckpointWriter(store, asynchronous=True)
    best = {}

    def state():
        return {
            "model": dict(model.state_dict()),
            "optimizer": optimizer.state_dict(),
            "forms": layer_forms(model),
            "random": capture_random(),
        }

    def step():
        optimizer.zero_grad()
        logits = model(ids[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()

    def note(name, seconds):
        best[name] = min(best.get(name, seconds), seconds)

    step()
    for number in range(rounds):
        note("step", timed(step)[0])
        before = peak_bytes()
        now = 2 * number
        note("save", timed(lambda now=now: store.write(Snapshot.of(now, {}, state())))[0])
        grown = peak_bytes() - before
        best["extra"] = max(best.get("extra", 0), grown)
        copied = lambda now=now: Snapshot.of(now + 1, {}, state(), copy=True)  # noqa: E731
        note("stall", timed(lambda copied=copied: background.submit(copied()))[0])
        note("rest", timed(background.wait)[0])
        seconds, found = timed(lambda: store.newest(print))
        note("read", seconds)
    size = sum(file.stat().st_size for file in found.path.iterdir())
    return {
        **{k: v for k, v in best.items() if k != "extra"},
        "bytes": size,
        "extra": best["extra"],
    }


def main():
    parser = options.parser(__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rounds = 2 if arguments.quick else arguments.rounds
    width = 64 if arguments.quick else arguments.width
    model = GPT(VOCABULARY, width=width, num_layers=arguments.layers, context=CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    parameters = sum(param.numel() for param in model.parameters())
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        cases["dense"] = measure(model, optimizer, Path(folder) / "dense", rounds)
        gossamer.sparsify(model, sparsity=0.9)
        cases["masked, 90 %"] = measure(model, optimizer, Path(folder) / "masked", rounds)
        gossamer.compact(model, optimizer)
        cases["compact, 90 %"] = measure(model, optimizer, Path(folder) / "compact", rounds)
    shown = Table(title=f"GPT of {parameters:,} parameters, AdamW")
    head = ("state", "MB on disk", "save, steps", "stall in background, steps", "read, steps")
    for name in (*head, "memory for a save / checkpoint"):
        shown.add_column(name, justify="left" if name == "state" else "right")
    for name, case in cases.items():
        in_steps = [f"{case[key] / case['step']:.2f}" for key in ("save", "stall", "read")]
        share = f"{case['extra'] / case['bytes']:.2f}"
        shown.add_row(name, f"{case['bytes'] / 1e6:.1f}", *in_steps, share)
    document = {"machine": options.machine(), "parameters": parameters, "cases": cases}
    options.give(arguments, document, shown)


if __name__ == "__main__":
    main()
