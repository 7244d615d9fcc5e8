# SPDX-License-Identifier: Apache-2.0
"""Peak memory of training steps: gossamer beside PyG and DGL, each in a process of its own.

    python benchmarks/graph_memory.py [--graphs cora,photo,arxiv] [--models gcn,gat] [--hidden 128]
                                      [--steps 5] [--json]

What a process takes at most during its steps (VmHWM of Linux, reset before them), above what it had
when packages, graph, features and weights were there. "gossamer" keeps nothing between steps but
memory of results. Peers as in benchmarks/graphs.py.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
ENGINES = ("pyg", "pyg-csr", "dgl", "gossamer")


def status(field):
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def worker(engine, path, model, hidden, steps):
    """Print the bytes that steps take, run in the environment of the engine."""
    torch.set_num_threads(1)
    arrays = np.load(path)
    edges, x, y = (torch.from_numpy(arrays[name]) for name in ("edges", "x", "y"))
    step = make_step(engine, model, edges, x, y, hidden)
    gc.collect()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(steps):
        step()
    print(status("VmHWM") - before)


def make_step(engine, model, edges, x, y, hidden):
    """A training step of one contender."""
    sys.path.insert(0, str(HERE / "support"))
    from graph_models import step_of, two_layers

    if engine == "dgl":
        sys.path.insert(0, str(HERE / "peers"))
        from dgl_step import dgl_step

        return dgl_step(model, edges, x, y, hidden, int(y.max()) + 1)
    layers = two_layers(model, x.shape[1], hidden, int(y.max()) + 1)
    graph = edges
    if engine == "pyg-csr":
        from torch_geometric.utils import to_torch_csr_tensor

        graph = to_torch_csr_tensor(edges.flip(0), size=(x.shape[0], x.shape[0]))
    if engine == "gossamer":
        from gossamer.graph import accelerate, graph_layers

        accelerate(layers)
        for layer in graph_layers(layers):
            layer.keeps = False
    return step_of(layers, x, graph, y)


def measured(engine, *case):
    """Bytes of a contender; None where it fails."""
    from gossamer.settings import peers_dir

    own = engine == "gossamer"
    python = sys.executable if own else str(peers_dir() / "graph" / "bin" / "python")
    command = [python, "-W", "ignore", __file__, "--worker", engine, *map(str, case)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{engine}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return int(done.stdout.split()[-1])


def main():
    if sys.argv[1:2] == ["--worker"]:
        engine, path, model, hidden, steps = sys.argv[2:]
        worker(engine, path, model, int(hidden), int(steps))
        return
    from support.graph_data import CASES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", default="cora,photo,arxiv")
    parser.add_argument("--models", default="gcn,gat")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not args.json:
        print("| graph | model | " + " | ".join(f"{e}, MB" for e in ENGINES) + " |")
        print("|---" * (2 + len(ENGINES)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.graphs.split(","):
            case, path = CASES[name](), str(Path(folder) / f"{name}.npz")
            np.savez(path, edges=case.edges, x=case.x, y=case.y)
            for model in args.models.split(","):
                found = [measured(e, path, model, args.hidden, args.steps) for e in ENGINES]
                if args.json:
                    row = {"graph": case.name, "model": model}
                    print(json.dumps({**row, **dict(zip(ENGINES, found, strict=True))}))
                    continue
                cells = ["-" if b is None else f"{b / 1e6:.0f}" for b in found]
                print(f"| {case.name} | {model} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
