# SPDX-License-Identifier: Apache-2.0
"""A model with experts on four hosts in a box: bytes beside the formula, time beside the plan.

    python benchmarks/expert_wire.py [--links 200 1000] [--steps 6] [--json]

Each host holds a quarter of the experts of every mixture and sees other samples; all of what is no
expert is on every host. Bytes are those of the interface's counters over the timed steps, of the
host that sends most; `formula` is the plan's, from sizes and batch alone, with even loads, and
`own loads` the same with the tokens that really left. The forecast of time comes from a calibration
of this machine directly before each case. Four ranks share the cores of this machine, all computing
at once; the plan is told so.
"""

import argparse
import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from rich.table import Table

from gossamer.planner import calibrate
from gossamer.planner.candidates import Evaluator
from gossamer.planner.cluster import LinkSpec
from gossamer.planner.model_sources import describe
from gossamer.planner.states import find_state
from gossamer.planner.workload import RankGrid, RankLayout, StepSpec
from gossamer.testing import Cluster, Link
from gossamer.training.distributed import MeshSizes
from gossamer.training.distributed.placement import ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined
from gossamer.training.experts import follow_experts, with_routing
from gossamer.training.loop import LearningRate, Loop, LoopSettings
from gossamer.zoo.switch import SwitchGPT
from support.options import give, machine, parser, progress

HOSTS, WARM = 4, 2


def build(given, device=None):
    torch.manual_seed(0)
    with torch.device(device or "cpu"):
        return SwitchGPT(
            256,
            width=given.width,
            num_heads=8,
            num_layers=given.layers,
            context=given.context,
            num_experts=given.experts,
            top_k=given.top_k,
            every=2,
        )


def sent_bytes():
    """That this host has sent, by the counters of its interfaces."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    rows = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def loss(model, ids_BT):
    logits = model(ids_BT[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids_BT[:, 1:].flatten())


def rank(given):
    """One host: warm steps, then timed ones."""
    from gossamer.data import RepeatedBatches

    generator = torch.Generator().manual_seed(1)
    shape = (given.batch, given.context + 1)
    ids = [torch.randint(256, shape, generator=generator) for _ in range(4)]
    model = build(given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    follow_experts(model, optimizer)
    steps = WARM + given.steps + 1
    settings = LoopSettings(steps=steps, rate=LearningRate("constant", steps, 0), log_every=1)
    marks = []
    with joined(MeshSizes(expert=HOSTS), Timeouts(240, 240, 20)) as session:
        grid = ProcessMesh(session)

        def noting(net, ids_BT):
            marks.append((time.perf_counter(), sent_bytes(), grid.traffic().get("tokens", 0)))
            return loss(net, ids_BT)

        Loop(
            model, optimizer, with_routing(noting), RepeatedBatches(ids), settings, processes=grid
        ).train()  # fmt: skip
    timed = marks[WARM:]
    pairs = list(pairwise(timed))
    found = {
        "seconds": [after[0] - before[0] for before, after in pairs],
        "bytes": [after[1] - before[1] for before, after in pairs],
        "tokens": [after[2] for _, after in pairs],
    }
    print(json.dumps(found), flush=True)


def forecast(given, rate):
    """The plan's, from a calibration of this machine now."""
    found = calibrate(width=given.width, tokens=given.context * 4, repeats=2)
    link = LinkSpec(gb_s=rate / 8e3 * 1448 / 1538, latency_us=300)
    links = found.links.model_copy(
        update={
            "inside": link,
            "between": link,
            "node_gb_s": link.gb_s,
            "ring_efficiency": 1.0,
            "overlap": 1.0,
        }
    )
    cluster = found.model_copy(
        update={
            "nodes": HOSTS,
            "ranks_per_node": 1,
            "shared_cores": os.cpu_count(),
            "links": links,
        }
    )
    shape = describe(build(given, "meta")).shape
    each = given.batch // HOSTS
    layout = RankLayout(RankGrid(1, 1, 1, HOSTS), "1f1b", 1, each, 1)
    work = StepSpec(given.batch, 0.0, microbatch=each)
    evaluator = Evaluator(shape, cluster, find_state("dense fp32"), work)
    return evaluator.evaluate(layout), cluster.compute.tflops * 1e3


def measured(given, rate):
    """What the hosts say."""
    command = [sys.executable, str(Path(__file__).resolve()), "--rank"]
    for name in ("width", "layers", "context", "batch", "steps", "experts", "top_k"):
        command += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    with Cluster(HOSTS, Link(rate_mbit=rate)) as cluster:
        ended = cluster.run(command, timeout_seconds=900)
        isolated = cluster.isolated
    for host, end in enumerate(ended):
        if end.exit_code:
            sys.exit(f"host {host} ended with {end.exit_code}:\n{end.errors[-3000:]}")
    found = [json.loads(end.output.splitlines()[-1]) for end in ended]
    if not isolated:
        sys.exit("no network namespaces here, so links have neither limits nor counters")
    return found


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--links", nargs="+", type=float, default=[200, 1000])
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--context", type=int, default=128)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--experts", type=int, default=8)
    options.add_argument("--top-k", type=int, default=2)
    options.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.rank:
        rank(given)
        return
    rows = []
    for rate in given.links:
        said, gflops = forecast(given, rate)
        hosts = measured(given, rate)
        seconds = [max(step) for step in zip(*(host["seconds"] for host in hosts), strict=True)]
        each = [statistics.mean(host["bytes"]) for host in hosts]
        most = max(range(HOSTS), key=each.__getitem__)
        tokens = statistics.mean(hosts[most]["tokens"])
        rows.append(
            {
                "rate": rate,
                "gflops": gflops,
                "bytes": each[most],
                "mean_bytes": statistics.mean(each),
                "formula": said.traffic.total,
                "own": said.traffic.all_reduce + tokens,
                "seconds": seconds,
                "forecast": said.time.to_dict(),
            }
        )
        progress(json.dumps(rows[-1]))
    table = Table(title=f"{HOSTS} hosts, {given.experts} experts, top-{given.top_k}")
    for column in (
        "Mbit/s",
        "MB sent, most",
        "mean host",
        "formula",
        "mean / formula",
        "most / own loads",
        "s a step, median",
        "best",
        "forecast",
        "median / forecast",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        median = statistics.median(row["seconds"])
        table.add_row(
            f"{row['rate']:.0f}",
            *(f"{row[name] / 1e6:.2f}" for name in ("bytes", "mean_bytes", "formula")),
            f"{row['mean_bytes'] / row['formula']:.3f}",
            f"{row['bytes'] / row['own']:.3f}",
            f"{median:.2f}",
            f"{min(row['seconds']):.2f}",
            f"{row['forecast']['total']:.2f}",
            f"{median / row['forecast']['total']:.2f}",
        )
    give(given, {"machine": machine(), "rows": rows}, table)


if __name__ == "__main__":
    main()
