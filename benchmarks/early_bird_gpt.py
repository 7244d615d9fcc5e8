# SPDX-License-Identifier: Apache-2.0
"""Early-Bird on a GPT (SAMO's own case): bits per character beside dense and gradual pruning.

    GOSSAMER_DATA=DIR python benchmarks/early_bird_gpt.py [--steps 400] [--seeds 3] [--at 0.9]
        [--methods dense gradual early_bird] [--journal FILE] [--json FILE]

The first 2 MB of enwik8, bytes for tokens; the last 200,000 bytes are held out and 65,536 of them
are predicted at the end. A GPT with 10.6 million weights in its blocks; embeddings, norms, biases
and the head stay dense. All runs of a seed see the same batches, optimizer and learning rate and
take the same number of steps. As soon as a mask is fixed the model is made compact and goes on with
the sparse kernels; a step is timed before and after, in seconds of the CPU. Each finished run is
appended to the journal, and one that is there is not run again.
"""

import json
import lzma
import math
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.table import Table

import gossamer
from gossamer import settings
from gossamer.zoo import GPT
from support.gpt import VOCABULARY, loss_of
from support.options import give, machine, parser, progress

WIDTH, LAYERS, HEADS, CONTEXT = 384, 6, 6, 64
HELD_OUT, PREDICTED = 200_000, 65_536
RATE, DECAY, WARM_UP, CLIP = 6e-4, 0.1, 0.05, 1.0
# One budget for all. Early-Bird's default `global` ranks layers by how they were initialised,
# `uniform` does not.
METHODS = {
    "dense": None,
    "gradual": {"kind": "gradual"},
    "early_bird": {"kind": "early_bird", "distance": "overlap"},
    "oneshot": {"kind": "oneshot", "at": 0.5},
}


def main():
    given = arguments()
    folder = settings.data_dir()
    if folder is None:
        sys.exit("early_bird_gpt: set GOSSAMER_DATA to the folder that holds enwik8-sample.")
    torch.set_num_threads(given.threads)
    text = torch.frombuffer(
        bytearray(lzma.decompress((folder / "enwik8-sample/enwik8_first2MB.xz").read_bytes())),
        dtype=torch.uint8,
    )
    known = read_journal(given.journal)
    for seed in range(given.seeds):
        for method in given.methods:
            key = key_of(method, seed, given)
            if any(run["key"] == key for run in known):
                continue
            run = {"key": key, "method": method, "seed": seed, **train(text, method, seed, given)}
            known.append(run)
            with given.journal.open("a") as journal:
                journal.write(json.dumps(run) + "\n")
            progress(f"seed {seed} {method}: {run['bpc']:.4f} bits, {run['cpu_minutes']:.1f} min")
    wanted = {key_of(m, s, given) for m in given.methods for s in range(given.seeds)}
    runs = [run for run in known if run["key"] in wanted]
    document = {"machine": machine(), "steps": given.steps, "batch": given.batch, "runs": runs}
    give(given, document, summary(runs, given))


def arguments():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--at", type=float, default=0.9, help="sparsity")
    options.add_argument("--methods", nargs="+", choices=METHODS,
                         default=["dense", "gradual", "early_bird"])  # fmt: skip
    options.add_argument("--journal", type=Path, default=Path("early_bird_gpt.jsonl"))
    given = options.parse_args()
    if given.quick:
        given.steps, given.seeds = 20, 1
    return given


def key_of(method, seed, given):
    """What makes two runs the same one."""
    at = 0.0 if METHODS[method] is None else given.at
    return (method, seed, given.steps, given.batch, at)


def read_journal(file):
    if not file.exists():
        return []
    runs = [json.loads(line) for line in file.read_text().splitlines()]
    return [{**run, "key": tuple(run["key"])} for run in runs]


def train(text, method, seed, given):
    """One run from scratch: bits per character, when the mask was fixed, and times of a step."""
    torch.manual_seed(seed)
    model = GPT(VOCABULARY, width=WIDTH, num_heads=HEADS, num_layers=LAYERS, context=CONTEXT)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.99), weight_decay=DECAY, fused=True)
    schedule = METHODS[method]
    ctl = None
    if schedule is not None:
        wanted = {**schedule, "sparsity": given.at, "budget": "uniform", "ignore": ["head"]}
        ctl = gossamer.attach(model, wanted, optimizer, total_steps=given.steps)
    draw = torch.Generator().manual_seed(seed)
    times, fixed_at, begun = {"before": [], "after": []}, None, time.process_time()
    for step in range(given.steps):
        rate = learning_rate(step / given.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = batch_of(text[:-HELD_OUT], given.batch, draw)
        start = time.process_time()
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        times["before" if fixed_at is None else "after"].append(time.process_time() - start)
        for event in [] if ctl is None else ctl.step():
            progress(f"  {method} {seed}, step {step + 1}: {event.kind} {event.details}")
        if ctl is not None and fixed_at is None and ctl.is_settled:
            fixed_at = step + 1
            gossamer.compact(model, optimizer, mode="kernel")
        if step % 50 == 0:
            progress(f"  {method} {seed}, step {step}: loss {loss.item() / math.log(2):.3f} bits")
    trained = time.process_time()
    return {
        "bpc": bits_per_character(model, text[-HELD_OUT:]),
        "sparsity": 0.0 if ctl is None else ctl.sparsity(),
        "fixed_at": None if fixed_at is None else fixed_at / given.steps,
        "agreed": next((e.details["agreed"] for e in ctl.events if e.kind == "ticket"), None)
        if ctl
        else None,
        "step_ms": {k: statistics.median(v) * 1e3 if v else None for k, v in times.items()},
        "cpu_minutes": (trained - begun) / 60,
        "last_loss_bits": loss.item() / math.log(2),
    }


def learning_rate(done):
    """Linear warm-up, then a cosine to a tenth."""
    return RATE * min(1.0, (done + 1e-3) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * done))


def batch_of(text, batch, generator):
    starts = torch.randint(len(text) - CONTEXT - 1, (batch,), generator=generator)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()]).long()


@torch.inference_mode()
def bits_per_character(model, text):
    """Mean over the first 65,536 bytes after the first, windows of the context without overlap."""
    model.eval()
    windows = text[: PREDICTED + 1].unfold(0, CONTEXT + 1, CONTEXT).long()
    nats = [loss_of(model, part).item() * len(part) for part in windows.split(16)]
    return sum(nats) / len(windows) / math.log(2)


def summary(runs, given):
    size = 12 * LAYERS * WIDTH**2 / 1e6
    table = Table(
        title=f"GPT of {size:.1f} M, enwik8, {given.steps} steps of {given.batch} x {CONTEXT}"
        f" bytes, {given.at:.0%} zeros, {given.seeds} seed(s)"
    )
    for heading in ("method", "bits/character", "over dense", "over gradual", "mask fixed at",
                    "step before", "after", "CPU min"):  # fmt: skip
        table.add_column(heading, justify="right")
    bits = {(run["method"], run["seed"]): run["bpc"] for run in runs}
    for method in given.methods:
        own = [run for run in runs if run["method"] == method]
        fixed = [run["fixed_at"] for run in own if run["fixed_at"] is not None]
        after = [run["step_ms"]["after"] for run in own if run["step_ms"]["after"]]
        table.add_row(
            method,
            spread([run["bpc"] for run in own]),
            *(
                spread([run["bpc"] - bits[rival, run["seed"]] for run in own], "+")
                if method != rival and (rival, 0) in bits
                else ""
                for rival in ("dense", "gradual")
            ),
            " ".join(f"{at:.2f}" for at in fixed),
            f"{statistics.median(run['step_ms']['before'] for run in own):.0f} ms",
            f"{statistics.median(after):.0f} ms" if after else "",
            f"{statistics.mean(run['cpu_minutes'] for run in own):.1f}",
        )
    return table


def spread(values, sign=""):
    return f"{statistics.mean(values):{sign}.3f} +- {(max(values) - min(values)) / 2:.3f}"


if __name__ == "__main__":
    main()
