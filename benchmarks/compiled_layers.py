"""`gossamer.compile` is never slower than dense: every shape, sparsity 0 included.

    python benchmarks/compiled_layers.py [--json] [--threads 1]

Timed as a user calls it. The dense contender is the stock nn.Linear with the same zeros, so the
overhead of the packed layer counts. A case passes within 5 % of dense.
"""

import argparse
import functools
import itertools
import json
import os

import torch
from torch import nn

import gossamer
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.timing import duel

SHAPES = ((64, 64), (384, 384), (768, 768), (3072, 768), (768, 3072), (1536, 576))
TOKENS = (1, 8, 128, 1024)
SPARSITIES = (0.0, 0.3, 0.5, 0.8, 0.9, 0.95)
ALLOWED = 1 / 1.05


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cases = []
    for shape, sparsity in itertools.product(SHAPES, SPARSITIES):
        dense = nn.Sequential(nn.Linear(shape[1], shape[0]))
        gossamer.sparsify(dense, sparsity=sparsity)
        fast = gossamer.compile(dense, tokens=TOKENS)
        stock = nn.Sequential(dense[0].to_dense())
        for tokens in TOKENS:
            x = torch.randn(tokens, shape[1])
            with torch.inference_mode():
                best = duel(
                    functools.partial(stock, x),
                    functools.partial(fast, x),
                    budget_seconds=0.15,
                    max_rounds=2000,
                )
            kernel = getattr(fast[0], "choice_for", lambda n: None)(tokens)
            cases.append(
                {
                    "shape": shape,
                    "sparsity": sparsity,
                    "tokens": tokens,
                    "ratio": best.ratio,
                    "kernel": kernel.kernel if kernel else "dense",
                }
            )
    worst = sorted(cases, key=lambda case: case["ratio"])
    document = {
        "cpu": cpu_name(),
        "kernels": active_kernels(),
        "threads": arguments.threads,
        "load": os.getloadavg()[0],
        "cases": cases,
        "slower_than_allowed": [case for case in cases if case["ratio"] < ALLOWED],
    }
    if arguments.json:
        print(json.dumps(document, indent=1))
        return
    print(f"{document['cpu']}, {document['kernels']}, load {document['load']:.1f}")
    print(f"{len(cases)} cases, {len(document['slower_than_allowed'])} slower than dense by > 5 %")
    for case in worst[:12]:
        rows, columns = case["shape"]
        print(
            f"  {case['ratio']:5.2f}x  {rows}x{columns} {case['sparsity']:.0%}"
            f" {case['tokens']} tokens ({case['kernel']})"
        )


if __name__ == "__main__":
    main()
