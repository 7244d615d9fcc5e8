# SPDX-License-Identifier: Apache-2.0
"""The planner's forecast for four hosts in a box, beside what they measure; and that the grid pays.

First this machine is calibrated, then the plan is made and a limit of memory chosen from it alone,
under which the dense model needs four stages. Only then ranks are started, on links of --rate
Mbit/s. Times are forecast from a calibration directly before each case: within minutes the speed of
a shared machine moves by more than a forecast may be off. "Dense" is the same pruned network held
as dense tensors with zeros, so all cases have the same losses. Every case runs under the limit
first; one that does not fit is run again without it.

The limit is one on private memory (RLIMIT_DATA), counted from what a process has before its model:
an allocation beyond it fails, as it does on a full device. Limits on resident memory would need
cgroups, which belong to whoever runs the machine.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import torch
from rich.table import Table

from gossamer.planner import calibrate
from gossamer.planner.candidates import Evaluator
from gossamer.planner.cluster import LinkSpec
from gossamer.planner.explaining import reasons
from gossamer.planner.model_sources import describe
from gossamer.planner.planning import plan_workload
from gossamer.planner.states import find_state
from gossamer.planner.workload import RankGrid, RankLayout, StepSpec
from gossamer.testing import Cluster, Link
from support import box_rank
from support.options import give, machine, parser, progress

SPARSITY = 0.9
HOSTS = 4
# What torch, oneDNN and the C library say when an allocation fails.
NO_MEMORY = ("allocate memory", "could not create a primitive", "bad_alloc", "MemoryError")
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
    arguments.add_argument("--steps", type=int, default=4)
    arguments.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments.add_argument("--rank", metavar="CASE", help=argparse.SUPPRESS)
    arguments.add_argument("--room", type=float, help=argparse.SUPPRESS)
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    if arguments.rank:
        box_rank.run(
            CASES[arguments.rank],
            shape_of(arguments),
            batch=arguments.batch,
            steps=arguments.steps,
            sparsity=SPARSITY,
            room=arguments.room,
        )
        return
    cluster = box(arguments)
    said = {name: forecast(name, cluster, arguments) for name in CASES}
    limit = planned_limit(said, cluster, arguments)
    progress(limit["text"])
    rows = []
    for name in arguments.cases:
        # Not its memory: this process has grown since it was small.
        now = box(arguments).model_copy(update={"memory": cluster.memory})
        row = {"case": name, "forecast": forecast(name, now, arguments)}
        row["measured"] = measured(name, arguments, limit["room"])
        rows.append(row)
        progress(json.dumps(row))
    document = {
        "machine": machine(),
        "cluster": cluster.model_dump(by_alias=True),
        "limit": limit,
        "rows": rows,
    }
    give(arguments, document, table(rows, arguments), limit["text"], grid_pays(rows))


def shape_of(arguments):
    return arguments.width, arguments.layers, arguments.context


def described(arguments):
    return describe(box_rank.build(*shape_of(arguments), device="meta")).shape


def box(arguments):
    """This machine's figures with the links of the box."""
    found = calibrate(
        width=arguments.width,
        tokens=arguments.context * 4,
        repeats=2 if arguments.quick else 3,
        densities=(1 - SPARSITY,),
    )
    # What is left for data: 1448 of the 1538 bytes that a full TCP frame takes on Ethernet.
    rate = LinkSpec(gb_s=arguments.rate / 8e3 * 1448 / 1538, latency_us=300)
    links = found.links.model_copy(
        update={
            "inside": rate,
            "between": rate,
            "node_gb_s": rate.gb_s,
            "ring_efficiency": 1.0,
            "overlap": 1.0,
        }
    )
    speed, speedup = found.compute.tflops * 1e3, found.compute.compact[0].speedup
    progress(f"calibrated: {speed:.1f} GFLOP/s, {speedup:.2f} times that when compact")
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
    shape = described(arguments)
    work = StepSpec(arguments.batch, SPARSITY, microbatch=microbatch)
    layout = RankLayout(
        RankGrid(data, pipeline), "1f1b", 1, microbatch, arguments.batch // data // microbatch
    )
    evaluator = Evaluator(shape, cluster, find_state(state), work)
    found = evaluator.simulated(evaluator.evaluate(layout))
    return {
        "gflops": cluster.compute.tflops * 1e3,
        "compact_speedup": cluster.compute.compact[0].speedup,
        "seconds": found.seconds,
        "compute": found.seconds - found.time.all_reduce - found.time.optimizer,
        "all_reduce": found.time.all_reduce,
        "bytes": found.memory.total + cluster.memory.overhead_gb * 1e9,
        "model_bytes": found.memory.total,
        "sent": found.traffic.total,
    }


def planned_limit(said, cluster, arguments):
    """A limit that leaves dense no less than four stages, and what the plan takes under it.

    It lies between the forecast of dense in two stages and those of dense in four and of compact
    replicas; no measurement has a part in it.
    """
    small = max(said["dense, 4 stages"]["bytes"], said["compact, 4 replicas"]["bytes"])
    bound = (small + said["dense, 2 x 2 stages"]["bytes"]) / 2
    memory = cluster.memory.model_copy(update={"gb": bound / 1e9, "usable": 1.0})
    plan = plan_workload(
        described(arguments),
        cluster.model_copy(update={"memory": memory}),
        StepSpec(arguments.batch, SPARSITY, microbatch=2),
        states=[find_state("dense fp32"), find_state("fp32")],
        schedules=("1f1b",),
        max_shard=1,
        choice="smallest-pipeline",
    )
    grids = [str(one.best.layout.grid) for one in plan.states]
    room = bound - cluster.memory.overhead_gb * 1e9
    text = (
        f"Limit {bound / 1e6:.0f} MB a rank, {room / 1e6:.0f} of them for training: the plan takes"
        f" {grids[0]} for dense and {grids[1]} for compact (data x pipeline x shard)."
    )
    return {"bytes": bound, "room": room, "grids": grids, "reasons": reasons(plan), "text": text}


def grid_pays(rows):
    """Dense in four stages against the compact layouts: time, and losses step by step."""
    by_name = {row["case"]: row for row in rows}
    dense = by_name.get("dense, 4 stages")
    lines = []
    for name in ("compact, 4 replicas", "compact, 2 x 2 stages"):
        compact = by_name.get(name)
        if dense is None or compact is None:
            continue
        ratios = [
            take(dense["measured"]["all_seconds"]) / take(compact["measured"]["all_seconds"])
            for take in (min, statistics.median)
        ]
        forecasts = dense["forecast"]["seconds"] / compact["forecast"]["seconds"]
        losses = [row["measured"]["losses"] for row in (dense, compact)]
        apart = max(abs(a - b) for a, b in zip(*losses, strict=True))
        lines.append(
            f"Dense in 4 stages over {name}: {forecasts:.2f} forecast, {ratios[0]:.2f} measured"
            f" (medians: {ratios[1]:.2f}). Losses differ by {apart:.1e} at most:"
            f" {shown(losses[0])} and {shown(losses[1])}."
        )
    return "\n".join(lines)


def shown(losses):
    return " ".join(f"{loss:.6f}" for loss in losses)


def measured(name, arguments, room):
    """A case under the limit, and without it if it does not fit."""
    found = ranks(name, arguments, room)
    if "refused" not in found:
        return {**found, "fits": True}
    return {**ranks(name, arguments, None), "fits": False, "refused": found["refused"]}


def ranks(name, arguments, room):
    """Start the ranks of a case on the hosts of a box."""
    # Stacks of threads are private memory, most of which is never used: 2 MiB each instead of 8.
    command = ["bash", "-c", 'ulimit -s 2048; exec "$@"', "rank"]
    command += [sys.executable, str(Path(__file__).resolve()), "--rank", name]
    for option in ("width", "layers", "context", "batch", "steps"):
        command += [f"--{option}", str(getattr(arguments, option))]
    if room is not None:
        command += ["--room", str(room)]
    with Cluster(HOSTS, Link(rate_mbit=arguments.rate)) as cluster:
        before = [one.sent_bytes for one in cluster.traffic()] if cluster.isolated else None
        ended = cluster.run(command, timeout_seconds=600)
        if any(one.exit_code for one in ended):
            text = "\n".join(one.errors for one in ended)
            if room is None:
                raise SystemExit(text)
            refusals = [line for line in text.splitlines() if any(how in line for how in NO_MEMORY)]
            # The loader of a library that finds no memory ends the process without a word.
            codes = ", ".join(str(one.exit_code) for one in ended)
            return {"refused": refusals[0] if refusals else f"exit codes {codes}"}
        after = [one.sent_bytes for one in cluster.traffic()] if cluster.isolated else None
    found = [json.loads(one.output.strip().splitlines()[-1]) for one in ended]
    sent = None if before is None else max(b - a for a, b in zip(before, after, strict=True))
    slowest = [max(times) for times in zip(*(f["seconds"] for f in found), strict=True)]
    return {
        "isolated": before is not None,
        "seconds": min(slowest),
        "all_seconds": slowest,
        "bytes": max(f["peak"] for f in found),
        "data_bytes": max(f["data"] for f in found),
        "before_model_bytes": max(f["before_model"] for f in found),
        "sent": None if sent is None else sent / (arguments.steps + box_rank.WARM_UP),
        "losses": found[0]["losses"],
    }


def table(rows, arguments):
    made = Table(title=f"{HOSTS} hosts, {arguments.rate:g} Mbit/s: forecast before, measured after")
    for heading in ("case", "s forecast", "s measured", "off", "MB forecast", "MB measured", "off"):
        made.add_column(heading, justify="right")
    made.add_column("MB sent, forecast", justify="right")
    made.add_column("measured", justify="right")
    made.add_column("under the limit")
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
            "runs" if found["fits"] else "no memory",
        )
    return made


if __name__ == "__main__":
    main()
