# SPDX-License-Identifier: Apache-2.0
"""Stock DDP of a compact GPT beside the dense one, on four hosts with limited links in a box.

    python benchmarks/compact_ddp.py [--rates 200 1000] [--rounds 5] [--json FILE]

The GPT has 25 million pruned parameters (8 blocks of width 512), bytes for tokens and a tied head;
90 % are pruned and the rest are Parameters of compact layers (mode `kernel`), so that nothing about
DDP is special. Communication is the time until gradients are there minus the same without
synchronisation: medians of steps taken in turns in one run, the slowest host's. Needs root.
"""

import json
import statistics
import sys
from pathlib import Path

from rich.table import Table

from gossamer.testing import Cluster, Link
from support import options

WORKER = Path(__file__).parent / "support" / "compact_steps.py"
HOSTS = 4
GOAL_MBIT, GOAL = 200, 8.0
BYTES_WITHIN = 0.05


def arguments():
    made = options.parser("Stock DDP of a compact GPT beside the dense one.")
    made.add_argument("--rates", type=float, nargs="+", default=[200, 1000], metavar="MBIT")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--tokens", type=int, default=32)
    made.add_argument("--layers", type=int, default=8)
    made.add_argument("--width", type=int, default=512)
    made.add_argument("--sparsity", type=float, default=0.9)
    made.add_argument("--limit", type=float, default=600, help="no round starts after so many s")
    return made.parse_args()


def measure(given, rate):
    settings = {
        name: getattr(given, name) for name in ("rounds", "tokens", "layers", "width", "sparsity")
    }
    settings["seconds"] = given.limit
    with Cluster(HOSTS, Link(rate), isolation="namespaces") as cluster:
        command = [sys.executable, str(WORKER), json.dumps(settings)]
        ended = cluster.run(command, timeout_seconds=given.limit + 900)
    for host, end in enumerate(ended):
        if end.exit_code:
            sys.exit(f"host {host} ended with {end.exit_code}:\n{end.errors[-2000:]}")
    return json.loads(ended[0].output.splitlines()[-1])


def summary(rate, said):
    rows = {}
    for name, elements in said["elements"].items():
        alone, synchronised = said["found"][f"{name} alone"], said["found"][f"{name} sync"]
        formula = 2 * (HOSTS - 1) / HOSTS * 4 * elements
        sent = statistics.median(synchronised["bytes"])
        rows[name] = {
            "elements": elements,
            "alone_ms": 1e3 * statistics.median(alone["reduced"]),
            "reduced_ms": 1e3 * statistics.median(synchronised["reduced"]),
            "range_ms": [1e3 * f(synchronised["reduced"]) for f in (min, max)],
            "step_ms": 1e3 * statistics.median(synchronised["stepped"]),
            "ring_ms": 1e3 * formula * 8 / (rate * 1e6),
            "sent_bytes": sent,
            "over_formula": sent / formula - 1,
        }
        rows[name]["communication_ms"] = rows[name]["reduced_ms"] - rows[name]["alone_ms"]
    dense, compact = rows["dense"], rows["compact"]
    return {
        "rate_mbit": rate,
        "rows": rows,
        "communication_gain": dense["communication_ms"] / compact["communication_ms"],
        "step_gain": dense["step_ms"] / compact["step_ms"],
        "bytes_gain": dense["sent_bytes"] / compact["sent_bytes"],
        "pruned": said["pruned"],
        "load": said["load"],
    }


def table_of(result):
    rate, gain = result["rate_mbit"], result["communication_gain"]
    verdict = ""
    if rate == GOAL_MBIT:
        verdict = f" (goal {GOAL:g}x: {'met' if gain >= GOAL else 'missed'})"
    within = all(abs(row["over_formula"]) <= BYTES_WITHIN for row in result["rows"].values())
    table = Table(
        title=f"{rate:g} Mbit/s: communication {gain:.2f}x{verdict}, step"
        f" {result['step_gain']:.2f}x, bytes {result['bytes_gain']:.2f}x"
        f" ({'within' if within else 'NOT within'} 5 % of the formula), load {result['load']:.1f}"
    )
    for column in (
        "model", "elements", "gradients ms", "range", "without sync ms", "communication ms",
        "ring formula ms", "step ms", "MB sent", "over formula",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in result["rows"].items():
        low, high = row["range_ms"]
        table.add_row(
            name,
            f"{row['elements']:,}",
            f"{row['reduced_ms']:.0f}",
            f"{low:.0f}-{high:.0f}",
            f"{row['alone_ms']:.0f}",
            f"{row['communication_ms']:.0f}",
            f"{row['ring_ms']:.0f}",
            f"{row['step_ms']:.0f}",
            f"{row['sent_bytes'] / 1e6:.2f}",
            f"{row['over_formula']:+.2%}",
        )
    return table


def main():
    given = arguments()
    results = []
    for rate in given.rates:
        options.progress(f"compact_ddp: {rate:g} Mbit/s")
        results.append(summary(rate, measure(given, rate)))
    document = {"machine": options.machine(), "results": results}
    options.give(given, document, *map(table_of, results))


if __name__ == "__main__":
    main()
