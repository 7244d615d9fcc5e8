"""Two threads against one: the sparse kernel and dense `F.linear`, 1024 tokens, interleaved.

    python benchmarks/threads.py [--json]

Meaningful only on an otherwise idle machine with two free cores; the load is printed. Threads of
this process are counted after torch alone has worked and again after both have: equal numbers say
that kernels run in torch's pool and the cores are not oversubscribed.
"""

import argparse
import functools
import itertools
import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F

from gossamer.formats import SparseMatrix
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.linear import pack_panel
from gossamer.ops.timing import duel

SHAPES = ((768, 768), (3072, 768), (768, 3072), (1536, 576))
SPARSITIES = (0.5, 0.8, 0.9, 0.95)
TOKENS = 1024


def with_threads(threads, call):
    torch.set_num_threads(threads)
    return call()


def scaling(call):
    best = duel(
        functools.partial(with_threads, 1, call),
        functools.partial(with_threads, 2, call),
        budget_seconds=0.8,
        min_rounds=10,
    )
    return best.ratio


def count_threads():
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with_threads(2, functools.partial(torch.mm, torch.randn(512, 512), torch.randn(512, 512)))
    threads = {"torch": count_threads()}
    cases = []
    for shape, sparsity in itertools.product(SHAPES, SPARSITIES):
        weight, x = torch.randn(shape), torch.randn(TOKENS, shape[1])
        mask = torch.rand(shape) >= sparsity
        weight = weight * mask
        packed = pack_panel(SparseMatrix.from_dense(weight, mask))
        cases.append(
            {
                "shape": shape,
                "sparsity": sparsity,
                "sparse": scaling(functools.partial(packed, x)),
                "dense": scaling(functools.partial(F.linear, x, weight)),
            }
        )
    threads["both"] = count_threads()
    if arguments.json:
        document = {"cpu": cpu_name(), "load": load, "threads": threads, "cases": cases}
        print(json.dumps(document, indent=1))
        return
    print(f"threads of this process: {threads['torch']} after torch, {threads['both']} after both")
    print(f"{cpu_name()}, {active_kernels()}, load before {load:.1f}: 2 threads over 1")
    for case in cases:
        rows, columns = case["shape"]
        print(
            f"  {rows:4d}x{columns:<4d} {case['sparsity']:.0%}: sparse {case['sparse']:.2f}x,"
            f" dense {case['dense']:.2f}x"
        )


if __name__ == "__main__":
    main()
