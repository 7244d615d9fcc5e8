# SPDX-License-Identifier: Apache-2.0
"""Communication of TASC beside dense DDP and other compressors, on four hosts in a box.

    python benchmarks/tasc.py [--links 200 loopback] [--rounds 10] [--width 1024] [--density 0.05]

An MLP 784-W-W-10 (W = 1024: 1.9 M parameters), batches of 32 per host. Communication is the time
until gradients are there minus the same without synchronisation: medians of steps that were taken
in turns in one run, the slowest host's. Links are a rate in Mbit/s (network namespaces, needs root)
or `loopback`. `overlapped` is stock DDP, `views` the same with gradient_as_bucket_view; `buckets`
is TASC as a communication hook alone, `tasc` as it comes. Accuracy: benchmarks/tasc_accuracy.py.
"""

import json
import statistics
import sys
from pathlib import Path

from rich.table import Table

from gossamer.testing import Cluster, Link
from support import options

METHODS = (
    "nosync", "plain", "overlapped", "views",
    "bf16", "powersgd", "topk", "random", "buckets", "tasc",
)  # fmt: skip
GOALS = {"200": 9.0, "loopback": 2.6}
WORKER = Path(__file__).parent / "support" / "tasc_steps.py"


def arguments():
    made = options.parser("Communication of TASC beside DDP and other compressors.")
    made.add_argument("--links", nargs="+", default=list(GOALS))
    made.add_argument("--hosts", type=int, default=4)
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--width", type=int, default=1024)
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--density", type=float, default=0.05)
    made.add_argument("--rounds", type=int, default=10)
    made.add_argument("--steps", type=int, default=3, help="timed steps of a round")
    made.add_argument("--limit", type=float, default=600, help="no round starts after so many s")
    return made.parse_args()


def measure(given, link):
    """What the hosts say, for one kind of link."""
    settings = {
        "methods": list(dict.fromkeys(["nosync", "plain", "overlapped", *given.methods])),
        "width": given.width,
        "batch": given.batch,
        "density": given.density,
        "rounds": given.rounds,
        "steps": given.steps,
        "seconds": given.limit,
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


def summary(link, said):
    """Medians by method, communication, and ratios to both kinds of dense DDP."""
    alone = statistics.median(said["found"]["nosync"]["reduced"])
    rows = []
    for method, own in said["found"].items():
        quarter = statistics.quantiles(own["reduced"], n=4)
        rows.append(
            {
                "method": method,
                "reduced_ms": 1e3 * statistics.median(own["reduced"]),
                "quartiles_ms": [1e3 * quarter[0], 1e3 * quarter[2]],
                "communication_ms": 1e3 * (statistics.median(own["reduced"]) - alone),
                "cpu_ms": 1e3 * statistics.median(own["busy"]),
                "step_ms": 1e3 * statistics.median(own["stepped"]),
                "sent_bytes": statistics.median(own["bytes"]),
            }
        )
    by_name = {row["method"]: row for row in rows}
    for row in rows:
        for base in ("plain", "overlapped"):
            dense = by_name[base]
            row[f"gain_{base}"] = dense["communication_ms"] / max(row["communication_ms"], 1e-3)
            row[f"speedup_{base}"] = dense["step_ms"] / row["step_ms"]
    return {"link": link, "rows": rows, "forecasts": said["forecasts"], "load": said["load"]}


def table_of(result):
    goal = GOALS.get(result["link"])
    title = f"link {result['link']}, load {result['load']:.1f}"
    table = Table(title=title + (f", goal {goal}x" if goal else ""))
    for column in (
        "exchange", "gradients ms", "quartiles", "communication ms", "CPU ms", "MB sent",
        "comm. against plain", "overlapped", "step against plain", "overlapped",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "exchange" else "right")
    for row in result["rows"]:
        compared = row["method"] != "nosync"
        low, high = row["quartiles_ms"]
        table.add_row(
            row["method"],
            f"{row['reduced_ms']:.1f}",
            f"{low:.1f}-{high:.1f}",
            f"{row['communication_ms']:.1f}" if compared else "",
            f"{row['cpu_ms']:.1f}",
            f"{row['sent_bytes'] / 1e6:.2f}" if row["sent_bytes"] else "",
            f"{row['gain_plain']:.2f}" if compared else "",
            f"{row['gain_overlapped']:.2f}" if compared else "",
            f"{row['speedup_plain']:.2f}",
            f"{row['speedup_overlapped']:.2f}",
        )
    return table


def main():
    given = arguments()
    results = []
    for link in given.links:
        options.progress(f"tasc: link {link}")
        results.append(summary(link, measure(given, link)))
        options.progress(f"forecasts: {results[-1]['forecasts']}")
    document = {"machine": options.machine(), "settings": vars(given) | {"peers": None}}
    document["settings"]["json"] = None
    options.give(given, {**document, "results": results}, *map(table_of, results))


if __name__ == "__main__":
    main()
