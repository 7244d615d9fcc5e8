# SPDX-License-Identifier: Apache-2.0
"""The roofline picture: rate over flops per byte, under the machine's memory and arithmetic."""

import functools
import math

import torch

from gossamer.ops.timing import race
from gossamer.report import Comparison, Figure, Page
from gossamer.report.charts import WIDTH, Bar, Chart, Label, Line
from gossamer.report.page import TextTable
from gossamer.running.rivals.engine_scripts.turn import turn
from support.cases import BLOCK, INT8, NM, PEER, SHARED, UNSTRUCTURED

_HUES = {group: f"hue{i + 1}" for i, group in enumerate((UNSTRUCTURED, NM, SHARED, BLOCK, INT8))}
_ROOF_HUE = "hue6"
_HEIGHT = 460.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, WIDTH - 150, 20.0, _HEIGHT - 40
_DOT = 6.0
_READ_BYTES = 1 << 28
_HEADLINE_COLUMN = "87.5-90 %"


def bandwidth_gbs():
    """GB/s of reading a tensor that fits no cache."""
    data = torch.ones(_READ_BYTES // 4)
    (us,) = race([functools.partial(turn, data.sum, torch.get_num_threads())], budget_seconds=1.0)
    return _READ_BYTES / us * 1e-3


def roofline_page(document, cells, lines):
    """Everything of a run on one page."""
    own = [cell for cell in cells if cell.group != PEER]
    return Page(
        title="Sparse kernels beside dense ones and their limits",
        lead="Linear layers on this machine. Ratios are over torch dense fp32 in the same race.",
        comparison=_headline(own),
        layers=(),
        machine=document["machine"],
        charts=(roofline_chart(own, document["ceilings_gflops"], document["bandwidth_gbs"]),),
        tables=(_limit_table(own), _line_table(lines), _claim_table(document["claims"])),
        notes=(
            "Percentages are of the ceiling of the kernel's instruction mix, measured in the same"
            " race on data in L1 and rows that never end.",
            "Bytes count x, y and the kept values once, so the memory roof is the best case.",
            "Peers get inputs in the form that suits them best: CSR a transposed one, bf16 one in"
            " bf16.",
        ),
    )


def roofline_chart(cells, ceilings, bandwidth):
    """A dot per cell, under the roofs of memory and of each instruction mix."""
    groups = list(dict.fromkeys(cell.group for cell in cells))
    chart = Chart(
        "GFLOP/s of kept work over flops per byte moved",
        _HEIGHT,
        legend=tuple((group, _HUES[group]) for group in groups),
    )
    threads = cells[0].row.threads
    roofs = {mix: rate * threads for mix, rate in ceilings.items()}
    rates = [cell.row.kept_gflops for cell in cells]
    x_axis = _Axis([cell.intensity for cell in cells] + [min(roofs.values()) / bandwidth])
    y_axis = _Axis([*rates, *roofs.values()])

    def place(x, y):
        return _LEFT + x_axis.part(x) * (_RIGHT - _LEFT), _BOTTOM - y_axis.part(y) * (
            _BOTTOM - _TOP
        )

    chart.lines.append(Line(((_LEFT, _TOP), (_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)), "axis"))
    for value in x_axis.ticks():
        x, _ = place(value, y_axis.low)
        chart.labels.append(Label(x, _BOTTOM + 18, f"{value:g}"))
    for value in y_axis.ticks():
        _, y = place(x_axis.low, value)
        chart.labels.append(Label(_LEFT - 8, y + 4, f"{value:g}", "end"))
    chart.labels.append(Label(_RIGHT, _HEIGHT - 6, "flops per byte", "end"))
    last_label = math.inf
    for mix, rate in sorted(roofs.items(), key=lambda item: item[1]):
        knee = max(x_axis.low, rate / bandwidth)
        chart.lines.append(Line((place(knee, rate), place(x_axis.high, rate)), _ROOF_HUE))
        _, y = place(x_axis.high, rate)
        last_label = min(y + 4, last_label - 14)
        chart.labels.append(Label(_RIGHT + 8, last_label, f"{mix} {rate:.0f}"))
    top = max(roofs.values())
    start = max(x_axis.low, y_axis.low / bandwidth)
    end = min(x_axis.high, top / bandwidth)
    if start < end:
        ends = place(start, start * bandwidth), place(end, end * bandwidth)
        chart.lines.append(Line(ends, _ROOF_HUE))
        chart.labels.append(Label(ends[0][0] + 6, ends[0][1] - 6, f"memory {bandwidth:.0f} GB/s"))
    for cell in cells:
        x, y = place(cell.intensity, cell.row.kept_gflops)
        chart.bars.append(
            Bar(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, _HUES[cell.group], _tooltip(cell))
        )
    return chart


class _Axis:
    """A logarithmic axis around some values."""

    def __init__(self, values):
        self.low, self.high = min(values) * 0.8, max(values) * 1.25

    def part(self, value):
        """Where a value lies between the ends, 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self):
        """1, 2 and 5 times powers of ten inside."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in values if self.low <= value <= self.high]


def _tooltip(cell):
    row = cell.row
    return (
        f"{row.pattern} {row.sparsity:.1%}, {row.rows}x{row.columns}, {row.tokens} tokens"
        f" ({row.kernel}): {row.kept_gflops:.0f} GFLOP/s, {row.ceiling_fraction:.0%} of its"
        f" ceiling, {row.ratio:.2f}x dense"
    )


def _headline(cells):
    """The worst case of the best pattern of each group in one column, as milliseconds."""
    figures = []
    chosen = [cell for cell in cells if cell.column == _HEADLINE_COLUMN]
    for group in dict.fromkeys(cell.group for cell in chosen):
        worst = {}
        for cell in (cell for cell in chosen if cell.group == group):
            known = worst.setdefault(cell.row.pattern, cell.row)
            worst[cell.row.pattern] = min(known, cell.row, key=lambda row: row.ratio)
        row = max(worst.values(), key=lambda row: row.ratio)
        name = (
            f"{row.pattern} {row.sparsity:.1%}, {row.rows}x{row.columns}, {row.tokens} tokens, ms"
        )
        figures.append(Figure(name, "ms", (row.dense_us * 1e-3, row.sparse_us * 1e-3)))
    return Comparison(("torch dense fp32", "gossamer"), tuple(figures))


def _limit_table(cells):
    cases = list(dict.fromkeys((c.row.rows, c.row.columns, c.row.tokens) for c in cells))
    fractions = {}
    for cell in cells:
        row = cell.row
        key = cell.column, cell.group, row.pattern
        fractions.setdefault(key, {})[row.rows, row.columns, row.tokens] = row
    return TextTable(
        "Part of the limit, cell by cell",
        ("sparsity", "group", "pattern", *(f"{r}x{k}, {t}" for r, k, t in cases)),
        tuple(
            (
                *key,
                *(f"{rows[case].ceiling_fraction:.0%}" if case in rows else "" for case in cases),
            )
            for key, rows in fractions.items()
        ),
        "Columns: outputs x inputs, tokens.",
    )


def _line_table(lines):
    return TextTable(
        "Speed-up over torch dense fp32",
        ("sparsity", "group", "pattern", "kernel", "worst", "median", "GFLOP/s", "goal", "verdict"),
        tuple(
            (
                line.column,
                line.group,
                line.pattern,
                "" if line.group == PEER else line.kernels,
                f"{line.worst:.2f}x",
                f"{line.median:.2f}x",
                f"{line.gflops:.0f}",
                "" if line.goal is None else f"{line.goal:g}",
                line.verdict,
            )
            for line in lines
        ),
        "GFLOP/s count kept weights only; for dense products all of them.",
    )


def _claim_table(claims):
    return TextTable(
        "Against other engines, worst case",
        ("against", "sparsity", "group", "pattern", "worst", "goal"),
        tuple(
            (
                *(claim["peer"], claim["column"], claim["group"], claim["pattern"]),
                f"{claim['worst']:.2f}x",
                f"{claim['goal']:g}",
            )
            for claim in claims
        ),
    )
