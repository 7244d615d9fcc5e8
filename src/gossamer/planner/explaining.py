# SPDX-License-Identifier: Apache-2.0
"""A plan in sentences, as a table, as pictures and as a page.

Pictures show where time and memory go, who works when, and how it scales.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from gossamer.planner.candidates import PlannedLayout
from gossamer.planner.planning import ClusterPlan, StatePlan
from gossamer.report import Comparison, Figure, Page
from gossamer.report.charts import Chart, bar_rows
from gossamer.report.charts.plot import Plot
from gossamer.report.charts.timeline import timeline_chart
from gossamer.report.page import TextTable

__all__ = [
    "FORECAST",
    "plan_page",
    "plan_table",
    "reasons",
]

_HUES = ("hue1", "hue2", "hue3", "hue4", "hue5", "hue6", "dense")


def scaling_chart(title: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> Chart:
    """Seconds of a step over ranks, both on logarithmic axes; a straight line scales perfectly."""
    hues = dict(zip(curves, ("dense", *_HUES), strict=False))
    logs = {
        name: [(math.log2(ranks), math.log2(seconds)) for ranks, seconds in curve]
        for name, curve in curves.items()
    }
    xs, ys = zip(*(point for curve in logs.values() for point in curve), strict=True)
    plot = Plot(title, 360.0, tuple(hues.items()), x=(min(xs), max(xs)), y=(min(ys), max(ys)))
    plot.axes(("ranks", ""), (lambda x: f"{2**x:.0f}", lambda y: f"{2**y:.3g} s"))
    for name, curve in curves.items():
        plot.line(logs[name], hues[name])
        for place, (ranks, seconds) in zip(logs[name], curve, strict=True):
            plot.dot(*place, hues[name], f"{name}, {ranks} ranks: {seconds:.3g} s")
    return plot


def _stacked(
    title: str, rows: Mapping[str, Mapping[str, float]], text: Callable[[float], str]
) -> Chart:
    parts = [part for part in next(iter(rows.values())) if any(row[part] for row in rows.values())]
    hues = dict(zip(parts, _HUES, strict=False))
    shown = [
        (
            name,
            [(hues[part], row[part], f"{part}: {text(row[part])}") for part in parts if row[part]],
            text(sum(row.values())),
        )
        for name, row in rows.items()
    ]
    legend = tuple((part.replace("_", "-"), hues[part]) for part in parts)
    return bar_rows(title, shown, "after", left=190.0, height=16.0, legend=legend)


_SHOWN = 12  # Layouts of a state, fastest first.
FORECAST = "A forecast: nothing was run. Times come from a model of the cluster, not from a clock."
_HEAD = (
    "state",
    "data x pipe x shard",
    "schedule",
    "microbatches",
    ">GB",
    ">s a step",
    ">compute",
    ">bubble",
    ">network",
    ">other",
    ">MB sent",
)


def plan_table(plan: ClusterPlan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Names of columns, and a row per state: the layout that was chosen.

    Where none fits it is the leanest one.
    """
    rows = []
    for found in plan.states:
        if found.best is not None:
            rows.append((found.state.name, *_cells(found.best)))
            continue
        lean = found.leanest
        needs = f"{lean.memory.total / 1e9:.3g}"
        rows.append((found.state.name, str(lean.layout.grid), "does not fit", "", needs, *[""] * 6))
    return _HEAD, rows


def _cells(one: PlannedLayout) -> tuple[str, ...]:
    layout, time = one.layout, one.time
    chunks = f", {layout.chunks} chunks" if layout.chunks > 1 else ""
    network = time.p2p + time.shard + time.all_reduce + time.tables + time.tokens
    parts = (time.compute, time.bubble, network, time.optimizer + time.compression)
    return (
        str(layout.grid),
        f"{layout.schedule}{chunks}" if layout.grid.pipeline > 1 else "-",
        f"{layout.microbatches} of {layout.microbatch}",
        f"{one.memory.total / 1e9:.3g}",
        f"{one.seconds:.3g}",
        *(f"{part:.3g}" for part in parts),
        f"{one.traffic.total / 1e6:.3g}",
    )


def reasons(plan: ClusterPlan) -> list[str]:
    """Why these layouts: what fits, and what the next best would cost."""
    limit = plan.cluster.memory.bytes_for_training / 1e9
    said = []
    for found in plan.states:
        name = found.state.name
        if found.best is None:
            lean = found.leanest
            said.append(
                f"{name}: no layout of {plan.ranks} ranks fits; the leanest ({lean.layout.grid})"
                f" needs {lean.memory.total / 1e9:.3g} of {limit:.3g} GB."
            )
            continue
        best = found.best
        rivals = [
            one for one in found.candidates if one.fits and one.layout.grid != best.layout.grid
        ]
        second = min(rivals, key=lambda one: one.seconds, default=None)
        also = f" Next grid: {second.layout.grid}, {second.seconds:.3g} s." if second else ""
        said.append(f"{name}: {_stages_reason(found, best, limit)}{also}")
    dense, *others = [found.best for found in plan.states]
    for one in others:
        if dense is not None and one is not None:
            cut = 1 - one.seconds / dense.seconds
            word = "less" if cut >= 0 else "more"
            said.append(
                f"{one.state} takes {abs(cut):.0%} {word} time than dense,"
                f" {one.memory.total / dense.memory.total:.0%} of its memory and"
                f" {one.traffic.total / max(dense.traffic.total, 1):.0%} of its traffic."
            )
    return said


def _stages_reason(found: StatePlan, best: PlannedLayout, limit: float) -> str:
    stages = best.layout.grid.pipeline
    fewer = [
        one
        for one in found.candidates
        if one.layout.grid.pipeline < stages and one.layout.grid.shard == best.layout.grid.shard
    ]
    if not fewer:
        return "needs no pipeline." if stages == 1 else f"{stages} stages."
    fitting = [one for one in fewer if one.fits]
    if not fitting:
        lean = min(fewer, key=lambda one: one.memory.total)
        return (
            f"{stages} stages are the fewest that fit: {lean.layout.grid.pipeline} need"
            f" {lean.memory.total / 1e9:.3g} of {limit:.3g} GB."
        )
    quick = min(fitting, key=lambda one: one.seconds)
    return (
        f"{stages} stages, although {quick.layout.grid.pipeline} would fit: that takes"
        f" {quick.seconds:.3g} s."
    )


def plan_page(plan: ClusterPlan, name: str) -> Page:
    """The plan as a report."""
    bests = {found.state.name: found.best for found in plan.states if found.best is not None}
    charts = []
    if bests:
        times = {name: asdict(best.time) for name, best in bests.items()}
        sizes = {name: asdict(best.memory) for name, best in bests.items()}
        charts = [
            _stacked("Seconds of a step, in closed form (forecast)", times, lambda x: f"{x:.3g} s"),
            _stacked("Bytes of the fullest rank (forecast)", sizes, lambda x: f"{x / 1e9:.3g} GB"),
        ]
    charts += [
        timeline_chart(
            found.evaluator.play(found.best.layout).spans,
            f"One step of the pipeline, {found.state.name}",
            ranks=found.best.layout.grid.pipeline,
        )
        for found in plan.states
        if found.best is not None and found.best.layout.grid.pipeline > 1
    ]
    head, rows = plan_table(plan)
    head = tuple(column.lstrip(">") for column in head)
    tables = [TextTable("Chosen", head, tuple(rows), FORECAST)]
    tables += [
        TextTable(
            f"Layouts of {found.state.name}",
            ("fits", *head[1:]),
            tuple(
                ("" if one.fits else "too big", *_cells(one)) for one in found.candidates[:_SHOWN]
            ),
            f"{len(found.candidates)} legal layouts were compared.",
        )
        for found in plan.states
    ]
    return Page(
        title=f"Plan: {plan.shape.name} on {name}",
        lead=f"{FORECAST} {plan.shape.parameters / 1e6:,.1f} M parameters,"
        f" {plan.work.sparsity:.0%} of {plan.shape.prunable / 1e6:,.1f} M pruned,"
        f" {plan.work.batch} samples of {plan.shape.tokens} tokens a step on {plan.ranks} ranks.",
        comparison=_comparison(plan),
        machine={
            "cluster": plan.cluster.description or name,
            "figures": plan.cluster.figures,
            "ranks": str(plan.ranks),
        },
        charts=charts,
        tables=tables,
        notes=[FORECAST, *reasons(plan)],
    )


def _comparison(plan: ClusterPlan) -> Comparison:
    bests = [found.best for found in plan.states]
    seconds = (None if best is None else best.seconds * 1e3 for best in bests)
    memory = (None if best is None else best.memory.total for best in bests)
    sent = (None if best is None else best.traffic.total for best in bests)
    return Comparison(
        tuple(found.state.name for found in plan.states),
        (
            Figure("ms a step", "ms", tuple(seconds)),
            Figure("bytes of a rank", "bytes", tuple(memory)),
            Figure("bytes sent by a rank", "bytes", tuple(sent)),
        ),
    )
