# SPDX-License-Identifier: Apache-2.0
"""What the planner says of published runs, and of GPT-3 13B on 256 to 2048 V100s.

Every time here is a forecast from `clusters/summit.yaml`; nothing is run. Two ways to choose:
"as AxoNN" takes 1F1B, microbatches of one sample and the fewest stages that fit; "best" takes the
fastest of all grids, shards, schedules and microbatches.
"""

from pathlib import Path

from rich.table import Table

from gossamer.planner import load_cluster
from gossamer.planner.explaining import scaling_chart
from gossamer.planner.model_shape import NAMED_SHAPES, gpt_shape
from gossamer.planner.planning import plan_workload
from gossamer.planner.states import STATES, find_state
from gossamer.planner.workload import StepSpec
from gossamer.report.page import render_svg
from support.options import give, machine, parser

DENSE = "dense, mixed precision"
SHOWN = (DENSE, "samo", "exact", "8bit")
# Stated by SAMO's authors: 2.7 billion parameters, 90 % pruned, 512 V100s, against AxoNN.
PUBLISHED = 0.34
BATCH, BATCH_13B = 512, 2048


def main():
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--svg", type=Path, help="write the curve of GPT-3 13B there")
    arguments = arguments.parse_args()
    ranks = (256, 2048) if arguments.quick else (256, 512, 1024, 2048)
    curves = {how: curve(how, ranks) for how in ("as AxoNN", "best")}
    document = {
        "machine": machine(),
        "forecast": True,
        "state": state_savings(),
        "published": anchors(),
        "gpt3-13b": curves,
    }
    if arguments.svg:
        drawn = {
            f"{name.split(',')[0]}, {how}": [(r["ranks"], r["seconds"]) for r in rows]
            for how, found in curves.items()
            for name, rows in found.items()
            if name != "8bit"
        }
        title = "GPT-3 13B, 90 % pruned, seconds a step over V100s: a forecast, not a measurement"
        arguments.svg.write_text(render_svg(scaling_chart(title, drawn)))
    give(
        arguments,
        document,
        anchor_table(document["published"]),
        *(curve_table(how, found) for how, found in curves.items()),
    )


def state_savings():
    """Bytes of training state per parameter, and what of dense is saved."""
    dense = STATES[DENSE].pruned.bytes_per_parameter(1.0)
    return [
        {"state": name, "sparsity": s, "bytes": held, "saved": 1 - held / dense}
        for name in SHOWN[1:]
        for s in (0.8, 0.9)
        for held in [STATES[name].pruned.bytes_per_parameter(1 - s)]
    ]


def planned(name, ranks, batch, how, *, everything=False, cut="cost"):
    shape = gpt_shape(NAMED_SHAPES[name], name)
    shape = shape.all_pruned() if everything else shape
    axonn = how == "as AxoNN"
    work = StepSpec(
        batch, 0.9, microbatch=1 if axonn else None, recompute="sqrt", cut=cut, buckets=False
    )
    options = {"schedules": ("message-driven",), "max_shard": 1, "choice": "smallest-pipeline"}
    return plan_workload(
        shape,
        load_cluster("summit"),
        work,
        ranks=ranks,
        states=[find_state(state) for state in SHOWN],
        **(options if axonn else {}),
    )


def anchors():
    """The published speed-up under the assumptions one may make about it."""
    found = []
    for everything, cut in ((True, "even"), (False, "even"), (True, "cost"), (False, "cost")):
        plan = planned("gpt3-2.7b", 512, BATCH, "as AxoNN", everything=everything, cut=cut)
        dense, samo = (plan.state(name).best for name in (DENSE, "samo"))
        found.append(
            {
                "pruned": "everything" if everything else "all but embeddings, norms and biases",
                "stages": "equal layers, as AxoNN" if cut == "even" else "cut by cost, as here",
                "pipeline": [dense.layout.grid.pipeline, samo.layout.grid.pipeline],
                "seconds": [dense.time.total, samo.time.total],
                "cut": 1 - samo.time.total / dense.time.total,
                "published": PUBLISHED,
            }
        )
    return found


def curve(how, counts):
    found = {name: [] for name in SHOWN}
    for ranks in counts:
        plan = planned("gpt3-13b", ranks, BATCH_13B, how)
        for name in SHOWN:
            best = plan.state(name).best
            found[name].append(
                {
                    "ranks": ranks,
                    # AxoNN's model adds messages up; layouts that overlap them are played.
                    "seconds": best.time.total if how == "as AxoNN" else best.seconds,
                    "grid": str(best.layout.grid),
                    "schedule": best.layout.schedule if best.layout.grid.pipeline > 1 else "-",
                    "gb": best.memory.total / 1e9,
                }
            )
    return found


def anchor_table(rows):
    table = Table(title="GPT-3 2.7B on 512 V100s, 90 %: SAMO's time cut (forecast)")
    for heading in ("pruned", "stages", "dense, SAMO stages", "seconds", "cut", "published", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        near = abs(row["cut"] - row["published"]) <= 0.03
        table.add_row(
            row["pruned"],
            row["stages"],
            " -> ".join(map(str, row["pipeline"])),
            " -> ".join(f"{s:.3f}" for s in row["seconds"]),
            f"{row['cut']:.1%}",
            f"{row['published']:.0%}",
            "within 3 points" if near else "further off",
        )
    return table


def curve_table(how, found):
    table = Table(title=f"GPT-3 13B, batch {BATCH_13B}, {how}: seconds a step (forecast)")
    table.add_column("state")
    for row in next(iter(found.values())):
        table.add_column(f"{row['ranks']} ranks", justify="right")
    for name, rows in found.items():
        table.add_row(name, *(f"{r['seconds']:.2f}  ({r['grid']}, {r['schedule']})" for r in rows))
    return table


if __name__ == "__main__":
    main()
