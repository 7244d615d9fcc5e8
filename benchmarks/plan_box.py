# SPDX-License-Identifier: Apache-2.0
"""The planner's forecast for four hosts in a box, beside what they measure.

First this machine is calibrated, then the plan is made, and only then ranks are started: dense and
compact replicas (DDP), and the dense model in four stages (1F1B), on links of --rate Mbit/s. The
grid pays where memory for less than four stages of the dense model is not there.
"""

import argparse
import ctypes
import json
import os
import re
import sys
import time
from pathlib import Path

import torch
from rich.table import Table
from torch import distributed as dist
from torch import nn

import gossamer
from gossamer.planner.calibration import calibrate
from gossamer.planner.candidates import Evaluator
from gossamer.planner.cluster_schema import Link as PlannedLink
from gossamer.planner.explaining import reasons
from gossamer.planner.model_sources import describe
from gossamer.planner.planning import plan_workload
from gossamer.planner.states import find_state
from gossamer.planner.workload import Grid, Layout, Workload
from gossamer.zoo import GPT
from support.options import give, machine, parser, progress

SPARSITY = 0.9
HOSTS = 4
# name -> (state, data, pipeline, samples of a microbatch)
CASES = {
    "dense, 4 replicas": ("dense fp32", 4, 1, 4),
    "dense, 2 x 2 stages": ("dense fp32", 2, 2, 2),
    "dense, 4 stages": ("dense fp32", 1, 4, 2),
    "compact, 4 replicas": ("fp32", 4, 1, 4),
    "compact, 2 x 2 stages": ("fp32", 2, 2, 2),
}


def main():
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--rate", type=float, default=200, help="Mbit/s of a host")
    arguments.add_argument("--width", type=int, default=512)
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--context", type=int, default=128)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--steps", type=int, default=2)
    arguments.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments.add_argument("--rank", metavar="CASE", help=argparse.SUPPRESS)
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    if arguments.rank:
        rank(arguments)
        return
    cluster = box(arguments)
    progress(f"calibrated: {cluster.compute.tflops * 1e3:.1f} GFLOP/s, {cluster.compute.compact}")
    rows = []
    for name in arguments.cases:
        row = {"case": name, "forecast": forecast(name, cluster, arguments)}
        row["measured"] = measured(name, arguments)
        rows.append(row)
        progress(json.dumps(row))
    document = {"machine": machine(), "cluster": cluster.model_dump(by_alias=True), "rows": rows}
    shown = [table(rows, arguments)]
    if set(CASES) <= set(arguments.cases):
        document["limit"] = limit = grid_pays(rows, cluster, arguments)
        shown.append(limit["text"])
    give(arguments, document, *shown)


def build(arguments, device="cpu"):
    with torch.device(device):
        return GPT(
            256,
            width=arguments.width,
            num_heads=arguments.width // 64,
            num_layers=arguments.layers,
            context=arguments.context,
            tied=True,
        )


def box(arguments):
    """This machine's figures with the links of the box."""
    found = calibrate(
        width=arguments.width,
        tokens=arguments.context * 4,
        repeats=2 if arguments.quick else 3,
        densities=(1 - SPARSITY,),
    )
    # What is left for data: 1448 of the 1538 bytes that a full TCP frame takes on Ethernet.
    rate = PlannedLink(gb_s=arguments.rate / 8e3 * 1448 / 1538, latency_us=300)
    links = found.links.model_copy(
        update={
            "inside": rate,
            "between": rate,
            "node_gb_s": rate.gb_s,
            "ring_efficiency": 1.0,
            "overlap": 1.0,
        }
    )
    return found.model_copy(
        update={
            "nodes": HOSTS,
            "ranks_per_node": 1,
            "shared_cores": os.cpu_count(),
            "links": links,
        }
    )


def forecast(name, cluster, arguments):
    state, data, pipeline, microbatch = CASES[name]
    shape = describe(build(arguments, "meta")).shape
    work = Workload(arguments.batch, SPARSITY, microbatch=microbatch)
    layout = Layout(
        Grid(data, pipeline), "1f1b", 1, microbatch, arguments.batch // data // microbatch
    )
    evaluator = Evaluator(shape, cluster, find_state(state), work)
    found = evaluator.simulated(evaluator.evaluate(layout))
    return {
        "seconds": found.seconds,
        "compute": found.seconds - found.time.all_reduce - found.time.optimizer,
        "all_reduce": found.time.all_reduce,
        "bytes": found.memory.total + cluster.memory.overhead_gb * 1e9,
        "model_bytes": found.memory.total,
        "sent": found.traffic.total,
    }


def grid_pays(rows, cluster, arguments):
    """What the plan takes under a limit that leaves dense no less than four stages, and its gain.

    The limit lies between the forecast of dense in two stages and those of dense in four and of
    compact replicas; no measurement has a part in it.
    """
    said = {row["case"]: row["forecast"] for row in rows}
    found = {row["case"]: row["measured"] for row in rows}
    small = max(said["dense, 4 stages"]["bytes"], said["compact, 4 replicas"]["bytes"])
    bound = (small + said["dense, 2 x 2 stages"]["bytes"]) / 2
    memory = cluster.memory.model_copy(update={"gb": bound / 1e9, "usable": 1.0})
    plan = plan_workload(
        describe(build(arguments, "meta")).shape,
        cluster.model_copy(update={"memory": memory}),
        Workload(arguments.batch, SPARSITY, microbatch=2),
        states=[find_state("dense fp32"), find_state("fp32")],
        schedules=("1f1b",),
        max_shard=1,
        choice="smallest-pipeline",
    )
    grids = [str(one.best.layout.grid) for one in plan.states]
    times = [
        f["dense, 4 stages"]["seconds"] / f["compact, 4 replicas"]["seconds"] for f in (said, found)
    ]
    peaks = {name: f"{one['bytes'] / 1e6:.0f}" for name, one in found.items()}
    text = (
        f"Limit {bound / 1e6:.0f} MB a rank: the plan takes {grids[0]} for dense and {grids[1]} for"
        f" compact (data x pipeline x shard). Step of dense over compact: {times[0]:.2f} forecast,"
        f" {times[1]:.2f} measured. Measured peaks in MB: {peaks}."
    )
    return {"bytes": bound, "grids": grids, "ratios": times, "reasons": reasons(plan), "text": text}


def measured(name, arguments):
    """Start the ranks of a case on the hosts of a box."""
    from gossamer.testing import Cluster, Link

    command = [sys.executable, str(Path(__file__).resolve()), "--rank", name]
    for option in ("width", "layers", "context", "batch", "steps"):
        command += [f"--{option}", str(getattr(arguments, option))]
    with Cluster(HOSTS, Link(rate_mbit=arguments.rate)) as cluster:
        before = [one.sent_bytes for one in cluster.traffic()] if cluster.isolated else None
        ended = cluster.run(command, timeout_seconds=600)
        if any(one.exit_code for one in ended):
            raise SystemExit("\n".join(one.output for one in ended))
        after = [one.sent_bytes for one in cluster.traffic()] if cluster.isolated else None
    found = [json.loads(one.output.strip().splitlines()[-1]) for one in ended]
    sent = None if before is None else max(b - a for a, b in zip(before, after, strict=True))
    return {
        "isolated": before is not None,
        "seconds": min(max(times) for times in zip(*(f["seconds"] for f in found), strict=True)),
        "all_seconds": [max(times) for times in zip(*(f["seconds"] for f in found), strict=True)],
        "bytes": max(f["peak"] for f in found),
        "before_model_bytes": max(f["before_model"] for f in found),
        # One step warms up.
        "sent": None if sent is None else sent / (arguments.steps + 1),
        "loss": found[-1]["loss"],
    }


def rank(arguments):
    """One rank of a case: trains, and prints what it took."""
    state, data, pipeline, microbatch = CASES[arguments.rank]
    dist.init_process_group("gloo")
    before = status("VmRSS")
    torch.manual_seed(0)
    ids = torch.randint(256, (arguments.batch, arguments.context + 1))
    # Nobody else may hold the model: a pipeline lets go of what is not its own.
    step = replicas(trained(arguments, state), ids, data, pipeline, microbatch)
    forget_peak()
    seconds, loss = [], 0.0
    for number in range(arguments.steps + 1):
        dist.barrier()
        began = time.perf_counter()
        loss = step()
        dist.barrier()
        if number:
            seconds.append(time.perf_counter() - began)
    found = {"seconds": seconds, "peak": status("VmHWM"), "before_model": before, "loss": loss}
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def trained(arguments, state):
    """The model as it is trained: compact models are pruned at their first weights."""
    model = build(arguments)
    if state == "fp32":
        gossamer.sparsify(model, sparsity=SPARSITY)
        gossamer.compact(model, mode="kernel")
    return model


def replicas(model, ids, data, pipeline, microbatch):
    """A function that takes one optimizer step of this rank and returns the loss."""
    from gossamer.train.distributed.gradients import average, replicated
    from gossamer.train.distributed.pipeline import Pipeline
    from gossamer.train.distributed.schedules import PipelineSettings

    world = torch.arange(HOSTS).view(data, pipeline)
    here = dist.get_rank()
    share = ids.chunk(data)[here // pipeline]
    if pipeline == 1:
        return replica(replicated(model, dist.group.WORLD, "full"), share, microbatch)
    groups = [dist.new_group(row.tolist()) for row in world]
    columns = [dist.new_group(column.tolist()) for column in world.T]
    settings = PipelineSettings(num_microbatches=len(share) // microbatch, schedule="1f1b")
    pipe = Pipeline(
        model, loss_of, (share[:microbatch, :-1],), settings, group=groups[here // pipeline]
    )
    del model
    optimizer = torch.optim.AdamW(pipe.parameters())

    def step():
        loss = pipe.step(share[:, :-1], target=share[:, 1:])
        if data > 1:
            average(pipe.parameters(), columns[here % pipeline], "full")
        optimizer.step()
        return loss

    return step


def replica(model, share, microbatch):
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        parts = share.split(microbatch)
        total = 0.0
        for number, part in enumerate(parts):
            model.require_backward_grad_sync = number == len(parts) - 1
            loss = loss_of(model(part[:, :-1]), part[:, 1:]) / len(parts)
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return step


def loss_of(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def forget_peak():
    """Freed pages of building and pruning go back, and the peak starts anew."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def status(name):
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", text)[1]) * 1024


def table(rows, arguments):
    made = Table(title=f"{HOSTS} hosts, {arguments.rate:g} Mbit/s: forecast before, measured after")
    for heading in ("case", "s forecast", "s measured", "off", "MB forecast", "MB measured", "off"):
        made.add_column(heading, justify="right")
    made.add_column("MB sent, forecast", justify="right")
    made.add_column("measured", justify="right")
    for row in rows:
        said, found = row["forecast"], row["measured"]
        sent = "-" if found["sent"] is None else f"{found['sent'] / 1e6:.1f}"
        made.add_row(
            row["case"],
            f"{said['seconds']:.2f}",
            f"{found['seconds']:.2f}",
            f"{said['seconds'] / found['seconds'] - 1:+.0%}",
            f"{said['bytes'] / 1e6:.0f}",
            f"{found['bytes'] / 1e6:.0f}",
            f"{said['bytes'] / found['bytes'] - 1:+.0%}",
            f"{said['sent'] / 1e6:.1f}",
            sent,
        )
    return made


if __name__ == "__main__":
    main()
