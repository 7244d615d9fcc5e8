"""Sparse linear layers against dense `F.linear`: fp32, interleaved in one run, minimum of many.

    python benchmarks/linear.py [--json] [--threads 1] [--seconds 0.6] [--pattern unstructured]

Prints every case and, per sparsity, the worst one. A case passes on its ratio to dense or on
85 % of the ceiling of its instruction mix: the dense rate of a shared machine moves by 30 %.
"""

import argparse
import itertools
import json
import os
import sys

import torch

from gossamer.ops.kernels import cpu_name
from gossamer.running.bench import bench_linear

SHAPES = ((768, 768), (3072, 768), (768, 3072), (1536, 576))
TOKENS = (128, 1024)
FLOOR = {0.5: 1.5, 0.8: 2.7, 0.9: 4.2, 0.95: 6.5}
TARGET = {0.5: 1.65, 0.8: 3.4, 0.9: 5.8, 0.95: 8.5}
CEILING_PASS = 0.85


def judge(row, goal):
    return row.ratio >= goal or row.ceiling_fraction >= CEILING_PASS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.6, help="time per case")
    parser.add_argument("--pattern", default="unstructured")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results = []
    for sparsity, shape, tokens in itertools.product(FLOOR, SHAPES, TOKENS):
        row = bench_linear(
            shape, tokens, sparsity, arguments.pattern, budget_seconds=arguments.seconds
        )
        results.append((sparsity, row))
        print(
            f"{sparsity:.0%} {row.rows:4d}x{row.columns:<4d} {tokens:4d} tokens:"
            f" {row.ratio:6.2f}x dense  {row.kept_gflops:5.1f} GFLOP/s kept"
            f" ({row.ceiling_fraction:.0%} of ceiling {row.ceiling_gflops:.0f}),"
            f" dense {row.dense_gflops:.0f}",
            file=sys.stderr,
            flush=True,
        )
    summary = [summarise(sparsity, results) for sparsity in FLOOR]
    document = {
        "cpu": cpu_name(),
        "kernels": results[0][1].kernels,
        "torch": torch.__version__,
        "threads": arguments.threads,
        "pattern": arguments.pattern,
        "load": os.getloadavg()[0],
        "rows": [row.to_dict() for _, row in results],
        "summary": summary,
    }
    if arguments.json:
        print(json.dumps(document, indent=1))
        return
    print(f"\n{document['cpu']}, {document['kernels']}, {arguments.threads} thread(s),", end=" ")
    print(f"load {document['load']:.1f}")
    print("sparsity  worst  median   best  floor  target  ceiling (worst)  verdict")
    for line in summary:
        print(
            f"{line['sparsity']:8.0%} {line['worst']:6.2f} {line['median']:7.2f}"
            f" {line['best']:6.2f}"
            f" {line['floor']:6.2f} {line['target']:7.2f} {line['worst_ceiling']:16.0%}"
            f"  {line['verdict']}"
        )


def summarise(sparsity, results):
    rows = [row for s, row in results if s == sparsity]
    ratios = sorted(row.ratio for row in rows)
    reached = "below floor"
    if all(judge(row, FLOOR[sparsity]) for row in rows):
        reached = "floor"
    if all(judge(row, TARGET[sparsity]) for row in rows):
        reached = "target"
    return {
        "sparsity": sparsity,
        "worst": ratios[0],
        "median": ratios[len(ratios) // 2],
        "best": ratios[-1],
        "floor": FLOOR[sparsity],
        "target": TARGET[sparsity],
        "worst_ceiling": min(row.ceiling_fraction for row in rows),
        "verdict": reached,
    }


if __name__ == "__main__":
    main()
