# SPDX-License-Identifier: Apache-2.0
"""One token through feed-forward blocks whose neurons are mostly zero, against dense, cold.

    python benchmarks/active_neurons.py [--json] [--threads 1] [--seconds 4] [--copies 3]

Random weights; the shift of the ReLU makes the wanted share of neurons zero. Every call takes the
next of several copies of the block and another token, so that no row waits in a cache, as it
would if one token were repeated. Contenders take turns; best call each.
`known` is given the active neurons, as a predictor would; the others find them by a screen of 4
bits and, of neurons within its margin (a third, at 90 % zeros), 4 more. `of bytes` is what the
bytes alone allow the latter: codes, and rows of active neurons.
"""

import itertools
import time

import torch
import torch.nn.functional as F
from rich.table import Table

from gossamer.ops.engines import PackedNeurons
from gossamer.ops.timing import race, stopwatch
from support.options import give, machine, parser, progress

SHAPES = {"gated 2048 x 8192": (2048, 8192, True), "plain 2048 x 8192": (2048, 8192, False)}
ZEROS = (0.8, 0.9, 0.95)


class Block:
    """One copy of a block: dense, and its neurons in fp32 and bf16."""

    def __init__(self, features, neurons, gated, shift, seed):
        generator = torch.Generator().manual_seed(seed)
        self.gate, self.down = (
            torch.randn(neurons, features, generator=generator) for _ in range(2)
        )
        self.up = torch.randn(neurons, features, generator=generator) if gated else None
        self.down_T = self.down.T.contiguous()
        self.shift = shift
        self.half = [None if w is None else w.bfloat16() for w in (self.gate, self.up, self.down_T)]
        self.fp32, self.bf16 = (
            PackedNeurons(self.gate, self.up, self.down, cut=(shift, shift), rows=rows)
            for rows in ("fp32", "bf16")
        )

    def dense(self, x):
        """As torch runs it."""
        h = F.relu(F.linear(x, self.gate) - self.shift)
        return F.linear(h if self.up is None else h * F.linear(x, self.up), self.down_T)

    def dense_bf16(self, x):
        """As torch runs it in bf16."""
        gate, up, down = self.half
        x = x.bfloat16()
        h = F.relu(F.linear(x, gate) - self.shift)
        return F.linear(h if up is None else h * F.linear(x, up), down)


def measured(name, zeros, given):
    features, neurons, gated = SHAPES[name]
    sample = torch.randn(64, features) @ torch.randn(512, features).T
    shift = float(sample.quantile(zeros))
    blocks = [Block(features, neurons, gated, shift, seed) for seed in range(given.copies)]
    # Tokens and their active neurons, by block; one comes again when hundreds of MB have gone by.
    tokens = [
        [(x[None], (g > shift).nonzero().flatten()) for x, g in zip(xs, xs @ b.gate.T, strict=True)]
        for b in blocks
        for xs in [torch.randn(40, features)]
    ]
    calls = {
        "dense fp32": lambda b, x, _: b.dense(x),
        "dense bf16": lambda b, x, _: b.dense_bf16(x),
        "active fp32": lambda b, x, _: b.fp32(x),
        "active bf16": lambda b, x, _: b.bf16(x),
        "known fp32": lambda b, x, known: b.fp32(x, known),
    }

    def fresh(call):
        pairs = itertools.cycle(
            [
                (b, *token)
                for row in zip(*tokens, strict=True)
                for b, token in zip(blocks, row, strict=True)
            ]
        )
        return lambda: call(*next(pairs))

    with torch.inference_mode():
        clock = time.process_time if given.threads == 1 else time.perf_counter
        best = race(
            [stopwatch(fresh(call), clock) for call in calls.values()],
            budget_seconds=given.seconds or 4.0,
        )
        x = torch.randn(20, features)
        y, active = blocks[0].fp32(x)
        wanted = blocks[0].dense(x)
    matrices = 3 if gated else 2
    allowed = 4 * matrices / (0.66 + 4 * matrices * active / (20 * neurons))
    return {
        "block": name,
        "zeros": 1 - active / (20 * neurons),
        "ms": {key: us / 1e3 for key, us in zip(calls, best, strict=True)},
        "bytes_allow": allowed,
        "error": float((y - wanted).abs().max() / wanted.abs().max()),
    }


def main():
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--copies", type=int, default=3, help="of each block")
    given = made.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for name, zeros in itertools.product(SHAPES, ZEROS):
        rows.append(measured(name, zeros, given))
        progress(f"{name}, {zeros:.0%}: {rows[-1]['ms']}")
    table = Table(title="one token, cold; times in ms, goal 6x dense at 90 % zeros")
    for column in (
        "block",
        "zeros",
        *rows[0]["ms"],
        "fp32 over dense",
        "of bytes",
        "known over dense",
        "error",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        ms = row["ms"]
        table.add_row(
            row["block"],
            f"{row['zeros']:.1%}",
            *(f"{value:.2f}" for value in ms.values()),
            f"{ms['dense fp32'] / ms['active fp32']:.2f}x",
            f"{row['bytes_allow']:.2f}x",
            f"{ms['dense fp32'] / ms['known fp32']:.2f}x",
            f"{row['error']:.1e}",
        )
    give(given, {"machine": machine(), "rows": rows}, table)


if __name__ == "__main__":
    main()
