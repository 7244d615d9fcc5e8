# SPDX-License-Identifier: Apache-2.0
"""Gradients of tables between four hosts: dense, sparse fp32, INT8 and INT4, in a box.

    python benchmarks/table_wire.py [--links 200 1000 loopback] [--width 16 64] [--drill 1000]

A model of DLRM's shape, long-tailed ids, one id per table and sample. `packets` is the time from
gradients that every host has of its own to their mean, encoding and decoding included: medians of
steps taken in turns in one run, the slowest host's. `gloo sparse` is torch's own all-reduce of
sparse tensors, table by table, as DDP does it; `sparse fp32` is our packet with numbers as they
are. Bytes are those of the interface's counters, beside the formula: (W - 1) x rows x (4 + bytes
of a row). `fastest` is the least of all steps, nearest to what a quiet machine gives; `forecast`
is the planner's, from sizes, batch and rate alone. Links are a rate in Mbit/s (network namespaces,
needs root) or `loopback`. The drill trains on the loopback, compares the bits of all hosts and
measures AUC on 50,000 unseen samples.
"""

import json
import os
import statistics
import sys
from pathlib import Path

from rich.table import Table

from gossamer.planner.table_step import TableShape, table_step
from gossamer.testing import Cluster, Link
from gossamer.training.distributed.table_traffic import table_traffic
from support import options

METHODS = ("dense", "gloo sparse", "sparse fp32", "sparse int8", "sparse int4")
WIRES = {"sparse fp32": "full", "sparse int8": "int8", "sparse int4": "int4"}
GOALS = {"200": 2.5, "loopback": 1.0}
WORKER = Path(__file__).parent / "support" / "table_steps.py"


def arguments():
    made = options.parser("Gradients of tables between hosts.")
    made.add_argument("--links", nargs="*", default=["200", "1000", "loopback"])
    made.add_argument("--hosts", type=int, default=4)
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--tables", type=int, default=26)
    made.add_argument("--height", type=int, default=20_000, help="rows of the largest table")
    made.add_argument("--width", type=int, nargs="+", default=[16, 64])
    made.add_argument("--batch", type=int, default=2048, help="samples of a host")
    made.add_argument("--rounding", choices=("nearest", "stochastic"), default="nearest")
    made.add_argument("--route", choices=("auto", "gather", "owner"), default="gather")
    made.add_argument("--rounds", type=int, default=6)
    made.add_argument("--steps", type=int, default=4, help="timed steps of a round")
    made.add_argument("--rate", type=float, default=0.1, help="of learning, in the drill")
    made.add_argument("--drill", type=int, default=0, help="steps after which bits are compared")
    made.add_argument("--limit", type=float, default=300, help="no round starts after so many s")
    return made.parse_args()


def heights_of(given):
    """Half of the tables are small, as in Criteo."""
    return [given.height if i % 2 else max(4, given.height >> (i + 1)) for i in range(given.tables)]


def measure(given, link, width, *, drill=0):
    """What the hosts say, for one kind of link."""
    settings = {
        **{name: vars(given)[name] for name in ("methods", "batch", "rounds", "steps", "rate")},
        **{name: vars(given)[name] for name in ("rounding", "route")},
        "heights": heights_of(given),
        "width": width,
        "seconds": given.limit,
        "drill": drill,
    }
    on_loopback = link == "loopback"
    cable = Link() if on_loopback else Link(float(link))
    isolation = "loopback" if on_loopback else "namespaces"
    with Cluster(given.hosts, cable, isolation=isolation) as cluster:
        command = [sys.executable, str(WORKER), json.dumps(settings)]
        ended = cluster.run(command, timeout_seconds=given.limit + 900)
    for host, end in enumerate(ended):
        if end.exit_code:
            sys.exit(f"host {host} ended with {end.exit_code}:\n{end.errors[-2000:]}")
    return json.loads(ended[0].output.splitlines()[-1])


def forecast_bytes(given, width, name, rows):
    """The formula, with the rows that hosts had touched in the steps."""
    steps = [step for host in rows for step in host[name]]
    mine, union = (statistics.mean(step[i] for step in steps) for i in (0, 1))
    found = table_traffic({width: mine}, union / mine, given.hosts, WIRES[name], given.tables)
    routes = {step[2] for step in steps}
    return found.owner if routes == {"owner"} else found.gather


def forecast_seconds(given, link, width, name):
    """The planner's: ids by Zipf's law, bytes at the link's rate, work on cores that are shared."""
    tables = [TableShape(height, width) for height in heights_of(given)]
    found = table_step(tables, given.batch, given.hosts, WIRES[name], 1.0)
    # What is left for data: 1448 of the 1538 bytes that a full TCP frame takes on Ethernet.
    on_link = found.bytes / (float(link) / 8 * 1e6 * 1448 / 1538)
    crowd = max(1.0, given.hosts / os.cpu_count())
    return on_link + found.messages * 300e-6 + found.work * crowd


def summary(given, link, width, found):
    said = found["said"]
    rows = []
    for name, own in said["found"].items():
        series = own["packets"]
        quarter = statistics.quantiles(series, n=4) if len(series) > 1 else series * 3
        row = {
            "method": name,
            "packets_ms": 1e3 * statistics.median(own["packets"]),
            "fastest_ms": 1e3 * min(own["packets"]),
            "quartiles_ms": [1e3 * quarter[0], 1e3 * quarter[2]],
            "cpu_ms": 1e3 * statistics.median(own["busy"]),
            "step_ms": 1e3 * statistics.median(own["step"]),
            "sent_bytes": statistics.median(own["bytes"]),
        }
        if name in WIRES:
            row["forecast_bytes"] = forecast_bytes(given, width, name, said["rows"])
            if link != "loopback":
                row["forecast_ms"] = 1e3 * forecast_seconds(given, link, width, name)
        rows.append(row)
    base = next((row for row in rows if row["method"] == "sparse fp32"), rows[0])
    for row in rows:
        row["gain_packets"] = base["packets_ms"] / row["packets_ms"]
        row["gain_fastest"] = base["fastest_ms"] / row["fastest_ms"]
        row["gain_step"] = base["step_ms"] / row["step_ms"]
    return {"link": link, "width": width, "rows": rows, "load": found["load"]}


def table_of(result):
    goal = GOALS.get(result["link"])
    title = f"link {result['link']}, width {result['width']}, load {result['load']:.1f}"
    table = Table(title=title + (f", goal for int8 {goal}x" if goal else ""))
    for column in (
        "exchange", "packets ms", "quartiles", "fastest", "forecast", "CPU ms", "step ms",
        "MB sent", "by formula", "gain", "of fastest", "of step",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "exchange" else "right")
    for row in result["rows"]:
        low, high = row["quartiles_ms"]
        by_formula = row.get("forecast_bytes")
        table.add_row(
            row["method"],
            f"{row['packets_ms']:.2f}",
            f"{low:.1f}-{high:.1f}",
            f"{row['fastest_ms']:.2f}",
            f"{row['forecast_ms']:.1f}" if "forecast_ms" in row else "",
            f"{row['cpu_ms']:.2f}",
            f"{row['step_ms']:.1f}",
            f"{row['sent_bytes'] / 1e6:.3f}" if row["sent_bytes"] else "",
            f"{by_formula / 1e6:.3f}" if by_formula and row["sent_bytes"] else "",
            f"{row['gain_packets']:.2f}",
            f"{row['gain_fastest']:.2f}",
            f"{row['gain_step']:.2f}",
        )
    return table


def drill_table(steps, said):
    table = Table(title=f"after {steps} steps on the loopback")
    for column in ("exchange", "same bits on all hosts", "AUC"):
        table.add_column(column)
    for name, own in said.items():
        table.add_row(name, "yes" if own["same"] else "NO", f"{own['auc']:.5f}")
    return table


def main():
    given = arguments()
    results, shown, drilled = [], [], None
    for width in given.width:
        for link in given.links:
            options.progress(f"table_wire: width {width}, link {link}")
            results.append(summary(given, link, width, measure(given, link, width)))
            options.progress(json.dumps(results[-1]))
            shown.append(table_of(results[-1]))
    if given.drill:
        options.progress(f"table_wire: {given.drill} steps")
        drilled = measure(given, "loopback", given.width[0], drill=given.drill)["said"]
        shown.append(drill_table(given.drill, drilled))
    document = {"machine": options.machine(), "settings": vars(given) | {"peers": None}}
    document["settings"]["json"] = None
    options.give(given, {**document, "results": results, "drill": drilled}, *shown)


if __name__ == "__main__":
    main()
