# SPDX-License-Identifier: Apache-2.0
"""Is the order that a layer chooses the fastest one? A grid of widths, both orders timed in turn.

    python benchmarks/graph_orders.py [--graph photo] [--widths 8,32,128,512] [--rounds 3]

Each cell is a GCN layer from a to b features, forward and backward, as the first layer of a network
(features need no gradient) and as an inner one. Both orders run on the same kernels. A choice
counts as the fastest if it takes at most 3 % longer than the other: times of the same thing lie as
far apart. Exit code 1 if it is in less than 90 % of the cells.
"""

import argparse
import itertools
import json
import math
import sys
import time

import torch

from gossamer.graph import GCN, Graph
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.tall import tall_linear
from support.graph_data import CASES

TIE = 1.03
SECONDS = 0.2  # of a cell at least: short steps need more rounds
GOAL = 0.9


def both_orders(layer, propagation, x):
    """Forward and backward: transform first, propagate first."""
    weight, bias = layer.lin.weight, layer.bias
    grad = torch.ones(x.shape[0], weight.shape[0])

    def transform():
        propagation(tall_linear(x, weight), bias).backward(grad)

    def propagate():
        tall_linear(propagation(x), weight, bias).backward(grad)

    return {"transform first": transform, "propagate first": propagate}


def cell(graph, inputs, outputs, is_first, rounds):
    """What the layer chose, and the seconds of both orders."""
    x = torch.randn(graph.num_targets, inputs).requires_grad_(not is_first)
    layer = GCN(inputs, outputs)
    layer.keeps = False
    layer(x, graph)
    steps = both_orders(layer, graph.matrix("gcn", loops="fill"), x)
    best, started, turn = dict.fromkeys(steps, math.inf), time.process_time(), 0
    while turn <= rounds or time.process_time() - started < SECONDS:
        for name, step in steps.items():
            start = time.process_time()
            step()
            if turn:  # the first one warms up
                best[name] = min(best[name], time.process_time() - start)
        turn += 1
    return layer.choice, best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="photo", choices=list(CASES))
    parser.add_argument("--widths", default="8,32,128,512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[args.graph]()
    graph = Graph.of(torch.from_numpy(case.edges), num_nodes=len(case.y))
    widths, rows = [int(w) for w in args.widths.split(",")], []
    for is_first, inputs, outputs in itertools.product((True, False), widths, widths):
        choice, best = cell(graph, inputs, outputs, is_first, args.rounds)
        is_right = best[choice.order] <= TIE * min(best.values())
        place = "first" if is_first else "inner"
        rows.append({"layer": place, "sizes": f"{inputs}-{outputs}", **best})
        rows[-1] |= {"chosen": choice.order, "fastest": is_right}
    right = sum(row["fastest"] for row in rows)
    if args.json:
        print(json.dumps(rows))
    else:
        print(f"{cpu_name()}, kernels {active_kernels()}, {case.name}: {graph}, ms of CPU time\n")
        print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
        for row in rows:
            cells = (f"{1e3 * x:.2f}" if isinstance(x, float) else str(x) for x in row.values())
            print("| " + " | ".join(cells) + " |")
        share = right / len(rows)
        print(f"\n{right} of {len(rows)} choices were the fastest order ({share:.0%})")
    return 0 if right >= GOAL * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
