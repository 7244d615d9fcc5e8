# SPDX-License-Identifier: Apache-2.0
"""A training step of a pruned GPT, every way to do it side by side, and where its time goes.

    python benchmarks/training_gpt.py [--json FILE] [--quick] [--threads 2] [--rounds 5]
        [--sparsity 0.8 0.9] [--batch 8] [--overhead-batches 2 4 8] [--bf16-rounds 1] [--cpu-time]

The model has 25 million pruned parameters (8 blocks of width 512) and bytes for tokens; sequences
have 256 tokens. A step is zero_grad, forward, loss, backward and AdamW. Contenders take turns and
the best step of each counts. Dense runs torch's fused AdamW.

First table: step time over dense fp32, bytes per parameter beside it. Second: what a step of the
dense model consists of, which bounds every gain from sparse weights: attention, activations, norms
and the head are the same in both. Third: what compression costs where products stay dense, `jit`
and `resident`, for three batch sizes, over dense with the same arithmetic.

--samo adds SAMO as published, in float16 and in bfloat16, and mode `resident`: the three-way table
of SAMO, `resident` and `kernel` (exact).

--cpu-time counts seconds of the process on the CPU instead of wall time, for one thread on a
machine that others use too.
"""

import os
import sys
import time

import torch
from rich.table import Table
from torch import nn

from gossamer.training.memory import measure
from support.gpt import CASES, CONTEXT, build_gpt, loss_of, prepare
from support.options import give, machine, parser, progress

TARGETS = {0.8: 1.4, 0.9: 2.0}
SPARSE = ("fp32", "exact", "8bit")
SAMO = ("samo", "samo bf16", "resident")


class Contender:
    """A model with its optimizer and its best step so far."""

    def __init__(self, case, sparsity, rounds=None):
        torch.manual_seed(0)
        self.case, self.sparsity, self.rounds_left = case, sparsity, rounds
        self.model = build_gpt("25M", case, sparsity)
        self.optimizer, self.scaler = prepare(self.model, case), CASES[case].scaler()
        self.best = {}

    def step(self, ids, clock):
        """One step; phases in seconds."""
        if self.rounds_left == 0:
            return
        if self.rounds_left is not None:
            self.rounds_left -= 1
        start = clock()
        self.optimizer.zero_grad()
        loss = loss_of(self.model, ids, autocast=CASES[self.case].autocast)
        forward = clock()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        backward = clock()
        if self.scaler is None:
            self.optimizer.step()
        elif not self.scaler.step(self.optimizer):
            raise SystemExit("a gradient overflowed: the step was skipped and shows nothing")
        end = clock()
        phases = {
            "forward": forward - start,
            "backward": backward - forward,
            "optimizer": end - backward,
            "step": end - start,
        }
        if not self.best or phases["step"] < self.best["step"]:
            self.best = phases


def main():
    options = parser(__doc__.splitlines()[0])
    options.set_defaults(threads=2)
    options.add_argument("--sparsity", type=float, nargs="+", default=(0.8, 0.9))
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--overhead-batches", type=int, nargs="*", default=(2, 4, 8))
    options.add_argument("--overhead-sparsity", type=float, default=0.9)
    options.add_argument("--bf16-rounds", type=int, default=1, help="of dense bf16; 0 for none")
    options.add_argument("--cpu-time", action="store_true")
    options.add_argument("--samo", action="store_true", help="SAMO as published and resident, too")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.batch, arguments.overhead_batches = 2, 2, (1, 2)
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    speed = step_times(arguments, clock)
    parts = dense_parts(arguments, clock)
    overhead = [overheads(batch, arguments, clock) for batch in arguments.overhead_batches]
    document = {
        "machine": machine(),
        "load_now": os.getloadavg()[0],
        "clock": "cpu" if arguments.cpu_time else "wall",
        "batch": arguments.batch,
        "speed": speed,
        "dense_parts_ms": parts,
        "overhead": overhead,
    }
    give(arguments, document, speed_table(speed, arguments), parts_table(parts, speed),
         overhead_table(overhead, arguments))  # fmt: skip


def take_turns(contenders, batch, rounds, clock):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(256, (batch, CONTEXT + 1), generator=generator)
    for contender in contenders:
        if contender.rounds_left is None:
            contender.step(ids, clock)
            contender.best = {}
    for number in range(rounds):
        for contender in contenders:
            contender.step(ids, clock)
        progress(
            f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}: "
            + "  ".join(
                f"{c.case} {c.sparsity:.0%} {c.best['step'] * 1e3:.0f} ms" for c in contenders
            )
        )


def step_times(arguments, clock):
    contenders = [Contender("dense", 0.0)]
    if arguments.bf16_rounds:
        # CPUs without bf16 instructions take several times as long as for fp32: few rounds.
        contenders.append(Contender("dense bf16", 0.0, arguments.bf16_rounds))
    sparse = (*SAMO, *SPARSE) if arguments.samo else SPARSE
    contenders += [
        # 16-bit products take seconds on CPUs without instructions for them.
        Contender(case, s, arguments.bf16_rounds if CASES[case].holds else None)
        for s in arguments.sparsity
        for case in sparse
        if arguments.bf16_rounds or CASES[case].holds is None
    ]
    take_turns(contenders, arguments.batch, arguments.rounds, clock)
    dense = contenders[0].best["step"]
    rows = []
    for contender in contenders:
        use = measure(contender.model, contender.optimizer)
        part = use.rest if contender.sparsity == 0 else use.pruned
        rows.append(
            {
                "case": contender.case,
                "mode": CASES[contender.case].mode,
                "sparsity": contender.sparsity,
                "ms": {name: seconds * 1e3 for name, seconds in contender.best.items()},
                "over_dense": dense / contender.best["step"],
                "bytes_per_parameter": part.bytes_per_parameter,
                "bytes_allowed": allowed_bytes(contender.case, 1 - contender.sparsity),
                "target": None
                if contender.case in SAMO
                else TARGETS.get(round(contender.sparsity, 3)),
            }
        )
    return rows


def allowed_bytes(case, density):
    if case == "resident":
        return 12 * density + 2.2
    return 1.01 * (24 * density + 2) if case in SAMO else 16 * density + 0.3


def dense_parts(arguments, clock):
    """Milliseconds of a dense step in each kind of module, forward and backward by themselves."""
    model = build_gpt("25M", "dense", 0.0)
    block, tokens = model.blocks[0], arguments.batch * CONTEXT
    width = model.width
    qkv = torch.randn(3, arguments.batch, model.num_heads, CONTEXT, width // model.num_heads)
    heads = [part.requires_grad_() for part in qkv.unbind(0)]
    x = torch.randn(tokens, width, requires_grad=True)
    wide = torch.randn(tokens, 4 * width, requires_grad=True)
    attention = nn.functional.scaled_dot_product_attention

    def linears():
        return [block.qkv(x), block.output(x), block.up(x), block.down(wide)]

    calls = {
        "linear layers of blocks": (linears, model.num_layers),
        "attention": (lambda: [attention(*heads, is_causal=True)], model.num_layers),
        "gelu": (lambda: [block.act(wide)], model.num_layers),
        "norms": (lambda: [block.attention_norm(x)], 2 * model.num_layers + 1),
        "head": (lambda: [model.head(x)], 1),
    }
    return {
        name: times * best_of(call, arguments.rounds, clock) * 1e3
        for name, (call, times) in calls.items()
    }


def best_of(call, rounds, clock):
    best = float("inf")
    for _ in range(rounds + 1):
        start = clock()
        results = call()
        torch.autograd.backward(results, [torch.ones_like(result) for result in results])
        best = min(best, clock() - start)
    return best


def overheads(batch, arguments, clock):
    """Dense arithmetic with and without compressed state, the same optimizer on both sides."""
    cases = ("dense", "resident fp32", "jit fp32", "resident", "jit")
    contenders = [
        Contender(case, 0.0 if case == "dense" else arguments.overhead_sparsity) for case in cases
    ]
    take_turns(contenders, batch, arguments.rounds, clock)
    dense = contenders[0].best["step"]
    return {
        "tokens": batch * CONTEXT,
        "dense_ms": dense * 1e3,
        "overhead": {c.case: c.best["step"] / dense - 1 for c in contenders[1:]},
    }


def speed_table(rows, arguments):
    table = Table(
        title=f"training step, GPT of 25 M, {arguments.batch} x {CONTEXT} tokens,"
        f" {arguments.threads} thread(s)"
    )
    for heading in ("state", "mode", "sparsity", "forward", "backward", "AdamW", "step ms"):
        table.add_column(heading, justify="right")
    for heading in ("over dense", "target", "bytes/param", "allowed", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        ms, target, sparse = row["ms"], row["target"], row["sparsity"] > 0
        fast = target is None or row["over_dense"] >= target
        fits = row["bytes_per_parameter"] <= row["bytes_allowed"]
        table.add_row(
            row["case"],
            row["mode"],
            f"{row['sparsity']:.0%}",
            *(f"{ms[name]:.0f}" for name in ("forward", "backward", "optimizer", "step")),
            f"{row['over_dense']:.2f}x",
            f"{target}x" if sparse and target else "",
            f"{row['bytes_per_parameter']:.3f}",
            f"{row['bytes_allowed']:.3f}" if sparse else "",
            ("ok" if fast and fits else "missed") if sparse else "",
        )
    return table


def parts_table(parts, speed):
    step = speed[0]["ms"]["step"]
    table = Table(title="where the dense fp32 step goes")
    for heading in ("part", "ms", "share"):
        table.add_column(heading, justify="right")
    for name, ms in parts.items():
        table.add_row(name, f"{ms:.0f}", f"{ms / step:.0%}")
    rest = step - sum(parts.values()) - speed[0]["ms"]["optimizer"]
    table.add_row("AdamW", f"{speed[0]['ms']['optimizer']:.0f}", "")
    table.add_row("rest", f"{rest:.0f}", f"{rest / step:.0%}")
    free = step / max(step - parts["linear layers of blocks"], 1e-9)
    table.caption = f"were the linear layers free, a step would be {free:.1f}x faster"
    return table


def overhead_table(rows, arguments):
    table = Table(title=f"cost of compression at {arguments.overhead_sparsity:.0%}, over dense")
    table.add_column("tokens", justify="right")
    table.add_column("dense ms", justify="right")
    names = list(rows[0]["overhead"]) if rows else []
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row['overhead'][name]:+.1%}" for name in names]
        table.add_row(str(row["tokens"]), f"{row['dense_ms']:.0f}", *cells)
    table.caption = "allowed: resident 5 %, jit 10 % at 2048 tokens"
    return table


if __name__ == "__main__":
    sys.exit(main())
