# SPDX-License-Identifier: Apache-2.0
"""From measured cells to the lines of the table: worst, median, and whether the goal is met."""

import math
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass

from gossamer.running.bench import BenchRow
from support.cases import BEST_COUNTS, CEILING_GOAL, CLAIMS, COLUMNS, INT8, PEER


@dataclass(frozen=True)
class Cell:
    """One pattern or peer on one shape and token count: its best kernel of the race."""

    group: str
    column: str
    row: BenchRow

    def passes(self, goal):
        """On the ratio to dense, or on being near the ceiling of its instruction mix."""
        return self.row.ratio >= goal or self.row.ceiling_fraction >= CEILING_GOAL

    @property
    def case(self):
        """What must be equal for two cells to be compared."""
        return self.column, self.row.rows, self.row.columns, self.row.tokens

    @property
    def intensity(self):
        """Flops of kept work per byte that has to move at least once: x, y and kept values."""
        row = self.row
        kept = (1 - row.sparsity) * row.rows * row.columns
        value_bytes = 1 if self.group == INT8 else 4
        moved = 4 * row.tokens * (row.rows + row.columns) + value_bytes * kept
        return 2 * row.tokens * kept / moved

    def to_dict(self):
        """Plain data for --json."""
        derived = {"group": self.group, "column": self.column, "intensity": self.intensity}
        row = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in self.row.to_dict().items()
        }
        return {**derived, **row}


@dataclass(frozen=True)
class Line:
    """One pattern or peer at one sparsity over all shapes and token counts."""

    column: str
    group: str
    pattern: str
    sparsity: float
    kernels: str
    worst: float
    median: float
    gflops: float
    worst_ceiling: float
    median_ceiling: float
    goal: float | None
    verdict: str

    def to_dict(self):
        """Plain data for --json."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }


def lines_of(cells):
    """One line per column and pattern, in the order of the columns; peers last."""
    found = defaultdict(list)
    for cell in cells:
        found[cell.column, cell.group, cell.row.pattern].append(cell)
    lines = []
    for column in COLUMNS:
        keys = [key for key in found if key[0] == column.title]
        for group in dict.fromkeys(key[1] for key in keys):
            goal = column.goals.get(group)
            made = [_line(key, found[key], goal) for key in keys if key[1] == group]
            lines += _best_only(made) if group in BEST_COUNTS else made
    return lines


def _line(key, cells, goal):
    rows = [cell.row for cell in cells]
    fractions = [row.ceiling_fraction for row in rows]
    verdict = ""
    if goal is not None:
        verdict = "met" if all(cell.passes(goal) for cell in cells) else "missed"
    return Line(
        *key,
        sparsity=statistics.median(row.sparsity for row in rows),
        kernels=", ".join(dict.fromkeys(row.kernel for row in rows)),
        worst=min(row.ratio for row in rows),
        median=statistics.median(row.ratio for row in rows),
        gflops=statistics.median(row.kept_gflops for row in rows),
        worst_ceiling=min(fractions),
        median_ceiling=statistics.median(fractions),
        goal=goal,
        verdict=verdict,
    )


def _best_only(lines):
    """Only the pattern with the best worst case is judged."""
    best = max(lines, key=lambda line: line.worst)
    return [
        line if line is best else Line(**{**asdict(line), "goal": None, "verdict": ""})
        for line in lines
    ]


def claims_of(cells):
    """(claim, worst ratio over the cases, the pattern that gave it) where both sides ran."""
    found = []
    for claim in CLAIMS:
        peer = {
            cell.case: cell.row.sparse_us
            for cell in cells
            if cell.group == PEER and cell.row.kernel == claim.peer and cell.column == claim.column
        }
        by_pattern = defaultdict(list)
        for cell in cells:
            if cell.group == claim.group and cell.case in peer:
                ratio = peer[cell.case] / cell.row.sparse_us
                by_pattern[cell.row.pattern].append(ratio)
        if by_pattern:
            worst = {pattern: min(ratios) for pattern, ratios in by_pattern.items()}
            best = max(worst, key=worst.__getitem__)
            found.append((claim, worst[best], best))
    return found
