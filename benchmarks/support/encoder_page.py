# SPDX-License-Identifier: Apache-2.0
"""The rows of `encoder.py`: judged, as tables, and as a page with a picture."""

import math
from dataclasses import asdict, dataclass, replace

from gossamer.cli.shell import table
from gossamer.report import Comparison, Figure, Page
from gossamer.report.charts import WIDTH, Bar, Chart, Label
from gossamer.report.page import TextTable
from gossamer.running.bench import RaceEntry
from gossamer.running.rivals import TITLES
from support.encoder_cases import THREADS_GOAL, goal

OWN, STOCK = RaceEntry.OWN, RaceEntry.STOCK
_REFERENCE = TITLES["onnxruntime"]
_HEADLINE = 0.9
_LINE, _BAR_HEIGHT, _LEFT, _RIGHT = 20.0, 13.0, 230.0, WIDTH - 80
_KINDS = {OWN: "sparse", TITLES["deepsparse"]: "hue2"}


@dataclass(frozen=True)
class Row:
    """One engine in one case.

    Attributes:
        least_ms: what the machine's limits leave for its kept weights.
        ratio: how many times as fast as the reference of the case.
        threads_ratio: how many times as fast as on one thread.
    """

    model: str
    batch: int
    threads: int
    engine: str
    precision: str
    sparsity: float
    ms: float
    error: float
    least_ms: float
    spearman: float | None = None
    ratio: float = math.nan
    threads_ratio: float | None = None
    goal: float | None = None

    @property
    def case(self):
        """What must be equal for two rows to be compared."""
        return self.model, self.batch, self.threads

    @property
    def verdict(self):
        """Of the goal; on more threads of what they bring."""
        if self.threads_ratio is not None:
            return "met" if self.threads_ratio >= THREADS_GOAL else "missed"
        if self.goal is None:
            return ""
        return "met" if self.ratio >= self.goal else "missed"

    def to_dict(self):
        """Plain data for --json."""
        return {**asdict(self), "of_roof": self.least_ms / self.ms, "verdict": self.verdict}


def judge(rows):
    """Every row with its ratios and goals."""
    reference = {}
    for engine in (STOCK, _REFERENCE):
        found = {r.case: r.ms for r in rows if r.engine == engine and r.precision == "fp32"}
        reference |= found
    alone = {
        (r.model, r.batch, r.engine, r.precision, r.sparsity): r.ms for r in rows if r.threads == 1
    }
    judged = []
    for row in rows:
        is_own = row.engine == OWN
        one = alone.get((row.model, row.batch, row.engine, row.precision, row.sparsity))
        several = row.threads > 1 and is_own and one is not None
        wanted = goal(row.model, row.batch, row.precision, row.sparsity) if is_own else None
        judged.append(
            replace(
                row,
                ratio=reference[row.case] / row.ms,
                threads_ratio=one / row.ms if several else None,
                goal=wanted if row.threads == 1 else None,
            )
        )
    return judged


_HEAD = (
    "engine",
    "precision",
    ">zeros",
    ">ms",
    ">speed-up",
    ">goal",
    "verdict",
    ">of roof",
    ">error",
)


def case_table(rows):
    """The table of one case."""
    scored = any(row.spearman is not None for row in rows)
    shown = table(*_HEAD, *([">Spearman"] if scored else []))
    shown.title = title_of(rows[0])
    for row in rows:
        shown.add_row(*_cells(row), *([_score(row)] if scored else []))
    return shown


def title_of(row):
    """A case in words."""
    return (
        f"{row.model}, batch {row.batch}, 128 tokens, {row.threads} thread{'s' * (row.threads > 1)}"
    )


def _cells(row):
    wanted = "" if row.goal is None else f"{row.goal:g}"
    if row.threads_ratio is not None:
        wanted = f"{row.threads_ratio:.2f}x of one thread, {THREADS_GOAL:g}"
    return (
        row.engine,
        row.precision,
        f"{row.sparsity:.0%}" if row.sparsity else "dense",
        f"{row.ms:.2f}",
        f"{row.ratio:.2f}x",
        wanted,
        row.verdict,
        f"{row.least_ms / row.ms:.0%}",
        f"{row.error:.0e}",
    )


def _score(row):
    return "" if row.spearman is None else f"{row.spearman:.2f}"


def encoder_page(document, rows):
    """Everything of a run on one page."""
    cases = {
        case: [r for r in rows if r.case == case] for case in dict.fromkeys(r.case for r in rows)
    }
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return Page(
        title="Pruned encoders beside other engines",
        lead="From token ids to the last hidden state on this machine. Ratios are over"
        f" {_REFERENCE} fp32 dense in the same race.",
        comparison=_headline(cases),
        layers=(),
        machine={**document["machine"], "engines": versions},
        charts=tuple(_chart(found) for found in cases.values()),
        tables=tuple(
            TextTable(
                title_of(found[0]),
                (*(head.lstrip(">") for head in _HEAD), "Spearman"),
                tuple((*_cells(row), _score(row)) for row in found),
            )
            for found in cases.values()
        ),
        notes=(
            "On one thread times are of the processor, on more by the wall clock.",
            "of roof: the least time of the kept weights at the measured arithmetic rate and read"
            " bandwidth, over the time taken.",
            "Static int8 of other engines was calibrated on random ids: their times count, their"
            " errors say little.",
        ),
    )


def _headline(cases):
    """Dense reference beside 90 % in fp32 and int8, a line per case."""
    figures = []
    for found in cases.values():
        best = [_first(found, engine, "fp32", 0.0) for engine in (_REFERENCE, STOCK)]
        dense = next((ms for ms in best if ms is not None), None)
        own = [_first(found, OWN, precision, _HEADLINE) for precision in ("fp32", "int8")]
        figures.append(Figure(f"{title_of(found[0])}, ms", "ms", (dense, *own)))
    return Comparison(
        (f"{_REFERENCE} fp32 dense", "gossamer fp32 90 %", "gossamer int8 90 %"), tuple(figures)
    )


def _first(rows, engine, precision, sparsity):
    found = [
        r.ms for r in rows if (r.engine, r.precision, r.sparsity) == (engine, precision, sparsity)
    ]
    return found[0] if found else None


def _chart(rows):
    """A bar per engine: its speed-up."""
    chart = Chart(
        f"Speed-up over {_REFERENCE} fp32 dense: {title_of(rows[0])}", len(rows) * _LINE + 8
    )
    longest = max(row.ratio for row in rows)
    for index, row in enumerate(sorted(rows, key=lambda row: row.ratio)):
        top = index * _LINE + 4
        name = (
            f"{row.engine} {row.precision} {'dense' if not row.sparsity else f'{row.sparsity:.0%}'}"
        )
        width = (_RIGHT - _LEFT) * row.ratio / longest
        chart.labels.append(Label(_LEFT - 8, top + 11, name, "end"))
        kind = _KINDS.get(row.engine, "dense")
        chart.bars.append(Bar(_LEFT, top, width, _BAR_HEIGHT, kind, f"{name}: {row.ms:.2f} ms"))
        chart.labels.append(Label(_LEFT + width + 8, top + 11, f"{row.ratio:.2f}x", "value"))
    return chart
