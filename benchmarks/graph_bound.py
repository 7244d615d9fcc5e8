# SPDX-License-Identifier: Apache-2.0
"""How near a training step of a GCN is to the bound of its products and its memory traffic.

    python benchmarks/graph_bound.py [--graphs cora,photo,facebook,gowalla,arxiv]
                                     [--hidden 128,256] [--rounds 10] [--json]

The bound is what the step must do in the orders that it chose, each part alone and at its best in
the same run, in turn with the step:

    products    each dense product by the faster of torch and these kernels, into ready memory
    traffic     bytes over the speed at which one thread reads an array of that size again and again

Bytes of a product with the graph: a row of features, a column and a value for each edge, and the
result, which counts double as it is read before it is written. ReLU reads and writes its features,
its gradient reads two and writes one; the loss passes eight times over the logits. Nothing is kept
between steps. CPU time of one thread, minimum of the rounds. Exit code 1 if a step is above
1 / 85 % of its bound.
"""

import argparse
import json
import math
import sys
import time

import torch

from gossamer import graph as gg
from gossamer.ops import tall
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.results import new_result
from support.graph_data import CASES
from support.graph_models import step_of, two_layers

GOAL = 0.85
FLOAT = 4


def dense_product(rows, inputs, outputs, kind, own):
    """One product of the step: forward, to features, or to the weight."""
    like = torch.empty(0)
    x, g = new_result(like, rows, inputs).fill_(1.0), new_result(like, rows, outputs).fill_(1.0)
    w = torch.ones(outputs, inputs)
    if kind == "forward":
        return lambda: tall._multiply(x, w, None, g, True, own=own)
    if kind == "features":
        return lambda: tall._multiply(g, w, None, x, False, own=own)
    return lambda: tall._add_up(g, x, w, None, own=own)


def parts_of(network, nodes, sizes):
    """Dense products (rows, inputs, outputs, kind), and (bytes, bytes of the array) of traffic."""
    layers = list(gg.graph_layers(network))
    products, traffic = [], []
    for number, (layer, (inputs, outputs)) in enumerate(zip(layers, sizes, strict=True)):
        kinds = ["forward", "weight"] + (["features"] if number else [])
        products += [(nodes, inputs, outputs, kind) for kind in kinds]
        edges = next(iter(layer.graphs._known.values())).graph.matrix("gcn", loops="fill").matrix
        first = layer.choice.propagates_first
        width = inputs if first else outputs
        passes = 2 if number or not first else 1
        of_edges = edges.edges.num_edges * (width * FLOAT + 4 + FLOAT)
        traffic.append((passes * of_edges, nodes * width * FLOAT))
        traffic.append((passes * 2 * nodes * width * FLOAT, nodes * width * FLOAT))
    hidden, classes = (nodes * sizes[k][1] * FLOAT for k in (0, 1))
    traffic.append((7 * hidden, hidden))
    traffic.append((8 * classes, classes))
    return products, traffic


def measure(case, hidden, rounds):
    """Seconds of the step, of its dense products and of its traffic."""
    x, y, edges = (torch.from_numpy(a) for a in (case.x, case.y, case.edges))
    network = two_layers("gcn", x.shape[1], hidden, case.num_classes)
    gg.accelerate(network)
    for layer in gg.graph_layers(network):
        layer.keeps = False
    step = step_of(network, x, edges, y)
    step()
    orders = [row.order for row in gg.explain(network)]
    if "sparse x" in orders:
        return None
    sizes = (x.shape[1], hidden), (hidden, case.num_classes)
    products, traffic = parts_of(network, len(y), sizes)
    calls = {"step": step}
    for product in products:
        for own in (True, False):
            calls[product, own] = dense_product(*product, own)
    for _, size in traffic:
        array = torch.ones(max(size // FLOAT, 1 << 16))
        calls["read", size] = lambda array=array: torch.sum(array)
    best = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    dense = sum(min(best[p, own] for own in (True, False)) for p in products)
    moved = sum(count / max(size, FLOAT << 16) * best["read", size] for count, size in traffic)
    return {
        "graph": case.name,
        "sizes": f"{x.shape[1]}-{hidden}-{case.num_classes}",
        "orders": orders,
        "step": 1e3 * best["step"],
        "products": 1e3 * dense,
        "traffic": 1e3 * moved,
        "share": (dense + moved) / best["step"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", default="photo,facebook,gowalla,arxiv")
    parser.add_argument("--hidden", default="128,256")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    if not args.json:
        print(f"{cpu_name()}, kernels {active_kernels()}, ms of CPU time, 1 thread\n")
        print("| graph | sizes | orders | step | products | traffic | share of the bound |")
        print("|---" * 7 + "|")
    for name in args.graphs.split(","):
        case = CASES[name]()
        for hidden in map(int, args.hidden.split(",")):
            row = measure(case, hidden, args.rounds)
            if row is None:
                print(f"{case.name} {hidden}: sparse x has no dense product", file=sys.stderr)
                continue
            rows.append(row)
            if not args.json:
                cells = [row["graph"], row["sizes"], " / ".join(row["orders"])]
                cells += [f"{row[k]:.1f}" for k in ("step", "products", "traffic")]
                print("| " + " | ".join([*cells, f"{row['share']:.0%}"]) + " |", flush=True)
    if args.json:
        print(json.dumps(rows))
    return 0 if all(row["share"] >= GOAL for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
