# SPDX-License-Identifier: Apache-2.0
"""Click logs with a known answer: long-tailed ids, planted interactions, the chance of each row.

Some categories have a hidden effect per id, some pairs have hidden vectors whose dot product
counts, and some numbers count by their logarithm. A row is clicked with the chance that follows.
Legend: N rows, I numbers, C categories, K hidden features.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.errors import InputError

_HIDDEN = 4
_MISSING = 0.05


@dataclass(frozen=True)
class ClickProblem:
    """Rows of a click log and what nobody knows of a real one.

    Attributes:
        numbers: float64 [N, I], whole numbers from -1; NaN where missing.
        ids: int64 [N, C], 0 is the most frequent.
        labels: int64 [N], 1 for a click.
        chances: float64 [N], of a click.
    """

    numbers: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor
    chances: torch.Tensor

    def bayes_auc(self) -> float:
        """The expected AUC of the best model: one that ranks by the true chance."""
        return weighted_auc(self.chances, self.chances, 1 - self.chances)


def click_problem(
    generator: torch.Generator,
    *,
    num_rows: int = 20_000,
    num_numbers: int = 13,
    rows: tuple[int, ...] = (200,) * 26,
    num_pairs: int = 2,
    zipf: float = 1.2,
    strength: float = 2.0,
) -> ClickProblem:
    """Draw a click log.

    Args:
        generator: decides everything.
        num_rows: N.
        num_numbers: I.
        rows: different ids of each category.
        num_pairs: pairs of neighbouring categories that interact, the first ones.
        zipf: id k is drawn with a weight of 1 / (k + 1) ** zipf.
        strength: of all effects together: standard deviation of the logit.
    """
    for name, value in (("num_rows", num_rows), *(("rows", size) for size in rows)):
        if value < 1:
            raise InputError(f"{name}: must be at least 1, got {value}.")
    draw: Any = {"generator": generator, "dtype": torch.float64}
    columns = [_zipf_ids(size, num_rows, zipf, generator) for size in rows]
    parts = []
    vectors = []
    for index, (size, ids_N) in enumerate(zip(rows, columns, strict=True)):
        effects, hidden = torch.randn(size, **draw), torch.randn(size, _HIDDEN, **draw)
        vectors.append(hidden[ids_N])
        # Every fourth category counts alone.
        if index % 4 == 0:
            parts.append(effects[ids_N])
        if index % 2 == 1 and index < 2 * num_pairs:
            parts.append((vectors[index - 1] * vectors[index]).sum(dim=1) / _HIDDEN**0.5)
    numbers = torch.empty(num_rows, num_numbers, dtype=torch.float64)
    for index in range(num_numbers):
        spread = torch.randn(num_rows, **draw)
        numbers[:, index] = (spread * 1.5 + 1).exp().floor() - 1
        if index % 4 == 0:
            parts.append(spread)
    total = torch.stack(parts).sum(dim=0) if parts else torch.zeros(num_rows, dtype=torch.float64)
    logits = strength * total / max(float(total.std(unbiased=False)), 1e-9) - 1.2
    chances = torch.sigmoid(logits)
    labels = (torch.rand(num_rows, **draw) < chances).long()
    # Missing after the chances are known: what a reader does with them can only lose a little.
    gone = torch.rand(num_rows, num_numbers, **draw) < _MISSING
    numbers = torch.where(gone, torch.nan, numbers)
    ids = torch.stack(columns, dim=1) if columns else torch.zeros(num_rows, 0, dtype=torch.int64)
    return ClickProblem(numbers, ids, labels, chances)


def _zipf_ids(size: int, count: int, exponent: float, generator: torch.Generator) -> torch.Tensor:
    weights = torch.arange(1, size + 1, dtype=torch.float64).pow(-exponent)
    bounds = weights.cumsum(0) / weights.sum()
    drawn = torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.searchsorted(bounds, drawn).clamp(max=size - 1)


def write_criteo(problem: ClickProblem, path: Path) -> None:
    """Write the rows as Criteo does: label, numbers, hexadecimal categories, separated by tabs."""
    numbers, ids = problem.numbers.tolist(), problem.ids.tolist()
    with path.open("w", encoding="ascii", newline="\n") as file:
        for label, row, members in zip(problem.labels.tolist(), numbers, ids, strict=True):
            cells = ["" if value != value else str(int(value)) for value in row]
            cells += [f"{_hashed(place, id_):08x}" for place, id_ in enumerate(members)]
            file.write("\t".join([str(label), *cells]) + "\n")


def _hashed(place: int, id_: int) -> int:
    """Neighbouring ids are unrelated numbers, as hashed ids are; no two of them are the same."""
    return (id_ * 2654435761 + place * 40503) % 2**32


def weighted_auc(scores: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor) -> float:
    """The chance that a positive row is ranked above a negative one; ties count half.

    O(n log n) in float64.

    Args:
        scores: [N], larger means more likely; no NaN.
        positives: [N], how much of each row is positive: its label, or its chance.
        negatives: [N], the same for negative.
    """
    order = torch.argsort(scores)
    ranked = scores[order]
    up, down = positives[order].double(), negatives[order].double()
    if not float(up.sum()) > 0 or not float(down.sum()) > 0:
        raise InputError(
            "AUC: is undefined, because all rows have the same label; expected some of both."
        )
    # Rows with one score are one step.
    groups = torch.zeros(len(ranked), dtype=torch.int64)
    groups[1:] = (ranked[1:] != ranked[:-1]).long().cumsum(0)
    count = int(groups[-1]) + 1
    zeros = torch.zeros(count, dtype=torch.float64)
    ups, downs = (zeros.index_add(0, groups, part) for part in (up, down))
    below = downs.cumsum(0) - downs
    return float((ups * (below + downs / 2)).sum() / (ups.sum() * downs.sum()))
