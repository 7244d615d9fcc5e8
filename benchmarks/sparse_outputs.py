# SPDX-License-Identifier: Apache-2.0
"""What a sparsifier of an output costs, against the layer whose output it is.

    python benchmarks/sparse_outputs.py [--seconds 20] [--json [FILE]]

A layer is a product and its activation, or one of BERT; forward without gradients, and forward with
backward. Each sparsifier runs in turn with the layer that has none, on the clock of the processor;
the ratio is that of the fastest of many. Goal: keep-all and threshold inline cost under 5 %.
"""

import statistics
import sys
import time

import torch
from rich.table import Table
from torch import nn

from gossamer.nn.intermediate import SparseOutput, sparsify_outputs
from support import options

GOAL = 1.05
CONTENDERS = {
    "keep-all, inline": SparseOutput("keep-all"),
    "threshold, inline": SparseOutput("threshold:0.5"),
    "random, inline": SparseOutput("random:0.5"),
    "2:4": SparseOutput(external="2:4"),
    "per-block:0.75:16": SparseOutput(external="per-block:0.75:16"),
    "fraction:0.9": SparseOutput(external="fraction:0.9"),
    "block-fraction:0.9:4": SparseOutput(external="block-fraction:0.9:4"),
    "threshold, inline, csr": SparseOutput("threshold:0.5", temporary="csr", format="dense"),
}


class Layer(nn.Module):
    """A product and its GELU."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.product, self.act = nn.Linear(inputs, outputs), nn.GELU()

    def forward(self, x):
        """Two operators of modules."""
        return self.act(self.product(x))


class Attention(nn.Module):
    """Softmax between two products, none of which is a module."""

    def forward(self, x):
        """Three operators of its own."""
        return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


# Layer, what is made sparse in it, input.
CASES = {
    "linear 768x3072, GELU, 128 tokens": (lambda: Layer(768, 3072), "act/gelu", (128, 768)),
    "linear 768x768, GELU, 512 tokens": (lambda: Layer(768, 768), "act/gelu", (512, 768)),
    "conv 64x64x3x3, 8 images 28x28": (
        lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()),
        "1/relu",
        (8, 64, 28, 28),
    ),
    "attention, 12 heads, 256 tokens of 64": (Attention, "/softmax", (12, 256, 64)),
}


def make(case, rule):
    """The layer of a case with its rule, and its input."""
    build, name, shape = CASES[case]
    torch.manual_seed(0)
    layer, x = build(), torch.randn(shape)
    if rule is not None:
        sparsify_outputs(layer, {name: rule}, x)
    return layer, x


def forward(layer, x):
    """Without gradients."""
    with torch.no_grad():
        layer(x)


def step(layer, x):
    """Forward and backward."""
    layer(x.requires_grad_()).sum().backward()


def race(case, run, rules, seconds):
    """Ratio to the layer without a sparsifier by name, and its milliseconds."""
    runners = {"dense": make(case, None)}
    refused = {}
    for name, rule in rules.items():
        try:
            runners[name] = make(case, rule)
            run(*runners[name])
        except ValueError as error:
            refused[name] = str(error)
            runners.pop(name, None)
    times = {name: [] for name in runners}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["dense"]) < 5:
        for name, (layer, x) in runners.items():
            start = time.thread_time()
            run(layer, x)
            times[name].append(time.thread_time() - start)
    dense = min(times["dense"])
    found = {
        name: {
            "ratio": min(own) / dense,
            "median_ratio": statistics.median(own) / statistics.median(times["dense"]),
            "rounds": len(own),
        }
        for name, own in times.items()
        if name != "dense"
    }
    return {"dense_ms": dense * 1e3, "contenders": found, "refused": refused}


def main():
    made = options.parser("What a sparsifier of an output costs.")
    made.add_argument("--only", default="", help="cases with this word")
    arguments = made.parse_args()
    torch.set_num_threads(arguments.threads)
    seconds = arguments.seconds or (1 if arguments.quick else 20)
    document = {"machine": options.machine(), "goal": GOAL, "cases": {}}
    table = Table("layer", "pass", "ms", *CONTENDERS)
    for case in (case for case in CASES if arguments.only in case):
        for label, run in (("forward", forward), ("forward and backward", step)):
            options.progress(f"{case}, {label}")
            result = race(case, run, CONTENDERS, seconds)
            document["cases"][f"{case}, {label}"] = result
            cells = (result["contenders"].get(name) for name in CONTENDERS)
            table.add_row(
                case,
                label,
                f"{result['dense_ms']:.2f}",
                *("-" if cell is None else f"{cell['ratio']:.3f}" for cell in cells),
            )
    options.give(arguments, document, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
