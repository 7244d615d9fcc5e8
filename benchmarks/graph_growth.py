# SPDX-License-Identifier: Apache-2.0
"""Time per edge as a graph grows, and the memory of layer-wise inference.

    python benchmarks/graph_growth.py [--edges 100000,1000000,10000000] [--width 32] [--rounds 3]

Random edges between a tenth as many nodes. `A x` is one product with the graph: with features where
torch placed them, and in large pages, where layers move features of more than 32 MB that come
again. Its bound is the rows, columns and values that edges read, and the result twice, at the speed
at which one thread reads the features one after the other. A step is forward and backward of two
GCN layers of that width with nothing kept; `infer` is all nodes, layer by layer, with the memory it
takes at most above what was there before, in multiples of one tensor of features.
"""

import argparse
import json
import math
import resource
import time

import torch
import torch.nn.functional as F

from gossamer.graph import GCN, Graph
from gossamer.graph.large import infer
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.results import offer_huge_pages


def best_of(rounds, step):
    """The fewest seconds of CPU time."""
    best = math.inf
    for _ in range(rounds):
        start = time.process_time()
        step()
        best = min(best, time.process_time() - start)
    return best


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def row(edges, width, rounds):
    """What main prints of a graph, in seconds; memory of inference in tensors of features."""
    nodes = max(edges // 10, 1)
    generator = torch.Generator().manual_seed(0)
    pair = torch.randint(0, nodes, (2, edges), generator=generator)
    graph = Graph.of(pair, num_nodes=nodes)
    x = torch.randn(nodes, width, generator=generator)
    first, second = GCN(width, width), GCN(width, width)
    first.keeps = False
    propagation = graph.matrix("gcn", loops="fill")
    with torch.no_grad():
        propagation(x)
        placed = best_of(rounds, lambda: propagation(x))
        offer_huge_pages(x)
        product = best_of(rounds, lambda: propagation(x))
        read = best_of(rounds, lambda: torch.sum(x))
    moved = propagation.matrix.edges.num_edges * (width * 4 + 8) + 2 * x.nbytes
    before = peak_bytes()
    infer([first, F.relu, second], x, graph)
    extra = (peak_bytes() - before) / (x.numel() * 4)

    def step():
        second(F.relu(first(x, graph)), graph).sum().backward()

    step()
    return placed, product, read * moved / x.nbytes, best_of(rounds, step), extra


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", default="100000,1000000,10000000")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for edges in map(int, args.edges.split(",")):
        *seconds, extra = row(edges, args.width, args.rounds)
        rows.append((edges, *(1e9 * part / edges for part in seconds), extra))
    if args.json:
        names = ("edges", "small_pages_ns", "product_ns", "bound_ns", "step_ns", "infer_tensors")
        print(json.dumps([dict(zip(names, found, strict=True)) for found in rows]))
        return
    print(f"{cpu_name()}, kernels {active_kernels()}, {args.width} features, ns of CPU per edge\n")
    print("| edges | A x, small pages | A x | bound | step | infer, tensors |")
    print("|---" * 6 + "|")
    for edges, *found in rows:
        print(f"| {edges} | " + " | ".join(f"{number:.1f}" for number in found) + " |")


if __name__ == "__main__":
    main()
