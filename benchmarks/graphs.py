# SPDX-License-Identifier: Apache-2.0
"""Training steps of graph neural networks: gossamer against PyG and DGL, interleaved.

    python benchmarks/graphs.py [--graphs cora,photo,cs,facebook,gowalla,wordnet,debian,arxiv]
                                [--models gcn,sage,gin,gat]
                                [--hidden 16,64,128,256] [--threads 1] [--rounds 5] [--seconds 30]
                                [--peers pyg,pyg-csr,dgl] [--keep-memory] [--json]

A step is forward and backward of two layers, without the optimizer. PyG runs with `edge_index`
(gather and scatter) and with a CSR `adj_t`; DGL is 1.1.3. Peers are processes of one environment
(`benchmarks/peers/setup.sh graph DIR`, found by GOSSAMER_PEERS). gossamer is the PyG model after
`accelerate`: once with what layers keep between steps switched off ("fresh"), once as it is
("kept": A x of fixed features, or sparse features). Minimum of the rounds, CPU time on one thread,
wall clock on more. After --seconds a cell has no further round.
--keep-memory lets malloc of all contenders keep what large results free. Exit code 1 if losses
differ.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gossamer import graph as gg
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.running.rivals import EngineFailed
from gossamer.running.rivals.engines import EngineProcess
from gossamer.settings import peers_dir
from support.graph_data import CASES
from support.graph_models import step_of, two_layers

ENGINES = ("pyg", "pyg-csr", "dgl")
SCRIPT = Path(__file__).resolve().parent / "peers" / "run_graph.py"
# What glibc reads when a process starts.
KEEPS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}


def our_step(case, model, hidden, keep):
    x, y, edges = (torch.from_numpy(a) for a in (case.x, case.y, case.edges))
    network = two_layers(model, x.shape[1], hidden, case.num_classes)
    gg.accelerate(network)
    for layer in gg.graph_layers(network):
        layer.keeps = keep
    return step_of(network, x, edges, y), network


def timed(step, clock):
    start = clock()
    step()
    return clock() - start


class Rivals:
    """The processes of the peers; one that fails is left out of a case."""

    def __init__(self, threads, engines=ENGINES):
        python = peers_dir() / "graph" / "bin" / "python"
        self._threads = threads
        self._processes = {}
        if not python.exists():
            print(f"no peers: benchmarks/peers/setup.sh graph {peers_dir()}", file=sys.stderr)
            return
        for engine in engines:
            self._processes[engine] = EngineProcess(engine, python, SCRIPT, threads, 600)

    def load(self, path, model, hidden):
        """Prepare a case; the losses of those that take it."""
        losses = {}
        for engine, process in self._processes.items():
            case = {"case": path, "engine": engine, "model": model, "hidden": hidden}
            try:
                losses[engine] = process.ask("load", {**case, "threads": self._threads})["loss"]
            except EngineFailed as failure:
                print(f"{failure}; left out", file=sys.stderr)
        return losses

    def turn(self, engine):
        """Seconds of one step."""
        return self._processes[engine].ask("turn", None)["seconds"]

    def close(self):
        """End the processes."""
        for process in self._processes.values():
            process.close()


def measure(case, path, model, hidden, rivals, args):
    losses = rivals.load(path, model, hidden)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    fresh, fresh_layers = our_step(case, model, hidden, False)
    kept, layers = our_step(case, model, hidden, True)
    losses["fresh"] = float(fresh())
    for _ in range(3):
        losses["kept"] = float(kept())
    best, began = dict.fromkeys(losses, math.inf), time.perf_counter()
    for turn in range(args.rounds):
        if turn and time.perf_counter() - began > args.seconds:
            break
        for name in best:
            step = {"fresh": fresh, "kept": kept}.get(name)
            seconds = rivals.turn(name) if step is None else timed(step, clock)
            best[name] = min(best[name], seconds)
    expected = losses.get("pyg", losses["fresh"])
    wrong = [n for n in losses if n != "dgl" and abs(losses[n] - expected) > 1e-5 * abs(expected)]
    return {
        "graph": case.name,
        "model": model,
        "inputs": case.x.shape[1],
        "hidden": hidden,
        "ms": {name: 1e3 * seconds for name, seconds in best.items()},
        "orders": [row.order for row in gg.explain(fresh_layers)],
        "kept": [row.order for row in gg.explain(layers)],
        "wrong": wrong,
    }


def show(row):
    ms = row["ms"]
    better = min((ms[n] for n in ("pyg-csr", "dgl") if n in ms), default=math.nan)
    ratios = [
        f"{ms['pyg'] / ms['fresh']:.1f}x" if "pyg" in ms else "-",
        f"{better / ms['fresh']:.2f}x",
        f"{better / ms['kept']:.2f}x",
    ]
    times = [f"{ms[n]:.1f}" if n in ms else "-" for n in (*ENGINES, "fresh", "kept")]
    cells = [row["graph"], row["model"], f"{row['inputs']}-{row['hidden']}", *times, *ratios]
    cells.append(" / ".join(row["orders"]) + " | " + row["kept"][0])
    print("| " + " | ".join(cells) + (f" WRONG {row['wrong']}" if row["wrong"] else "") + " |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", default=",".join(CASES))
    parser.add_argument("--models", default="gcn,sage,gin,gat")
    parser.add_argument("--hidden", default="16,64,128,256")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peers", default=",".join(ENGINES))
    parser.add_argument("--keep-memory", action="store_true")
    args = parser.parse_args()
    if args.keep_memory and not KEEPS.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEPS})  # noqa: S606
    torch.set_num_threads(args.threads)
    print(f"{cpu_name()}, kernels {active_kernels()}, {args.threads} thread(s), ms per step\n")
    head = [
        "graph",
        "model",
        "in-hidden",
        "PyG edge_index",
        "PyG CSR",
        "DGL 1.1.3",
        "fresh",
        "kept",
    ]
    head += ["PyG / fresh", "better of CSR, DGL / fresh", "the same / kept", "orders"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    rivals = Rivals(args.threads, args.peers.split(","))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.graphs.split(","):
            case = CASES[name]()
            path = str(Path(folder) / f"{name}.npz")
            np.savez(path, edges=case.edges, x=case.x, y=case.y)
            for model in args.models.split(","):
                for hidden in map(int, args.hidden.split(",")):
                    rows.append(measure(case, path, model, hidden, rivals, args))
                    show(rows[-1])
    rivals.close()
    if args.json:
        print(json.dumps(rows))
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
