# SPDX-License-Identifier: Apache-2.0
"""Rows as numbers: before a vocabulary is known (`RawRows`), and for a model (`ClickRows`).

Legend: N rows, I numbers, C categories. Ids lie row by row, category by category; `counts` says how
many there are of each, and is None where every category has exactly one id.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gossamer.data.clicks.columns import Category, Columns
from gossamer.data.clicks.keys import Keys, crossed_keys, text_keys
from gossamer.data.clicks.table_files import Cells
from gossamer.errors import InputError

Array = npt.NDArray[Any]
MAX_DIGITS = 19
# line, what is wrong with it
Refuse = Callable[[int, str], None]


@dataclass(frozen=True)
class RawRows:
    """Cells as numbers and keys.

    Attributes:
        numbers: float32 [N, I], transformed; NaN where missing.
        keys: uint64 [all ids].
        counts: int32 [N, C], or None.
        labels: uint8 [N]; empty where there are none.
        times: float64 [N]; empty where there are none.
        hashes: uint32 [N], of the cells; empty where they are not asked for.
    """

    numbers: Array
    keys: Keys
    counts: Array | None
    labels: Array
    times: Array
    hashes: Array


@dataclass(frozen=True)
class ClickRows:
    """Rows as a model takes them.

    Attributes:
        numbers: float32 [N, I], standardised.
        ids: int32 [all ids], rows of tables.
        counts: int32 [N, C], or None.
        labels: uint8 [N]; empty where there are none.
        num_categories: C.
    """

    numbers: Array
    ids: Array
    counts: Array | None
    labels: Array
    num_categories: int

    def __len__(self) -> int:
        return len(self.numbers)

    def inputs(self) -> tuple[Any, ...]:
        """Arguments of `zoo.DLRM`: numbers and ids, or numbers, ids and offsets by category."""
        numbers, ids = torch.from_numpy(self.numbers), torch.from_numpy(self.ids).long()
        if self.counts is None:
            return numbers, ids.view(len(self), self.num_categories)
        counts_NC = torch.from_numpy(self.counts).long()
        table = torch.arange(self.num_categories).repeat(len(self))
        order = torch.argsort(table.repeat_interleave(counts_NC.flatten()), stable=True)
        by_table = torch.split(ids[order], counts_NC.sum(dim=0).tolist())
        starts_NC = counts_NC.cumsum(dim=0) - counts_NC
        return numbers, list(by_table), [column.contiguous() for column in starts_NC.unbind(dim=1)]

    def targets(self) -> torch.Tensor:
        """float32 [N], 1 for a click."""
        return torch.from_numpy(self.labels).float()

    def take(self, places: Array) -> "ClickRows":
        """Some of the rows, in the order of `places`."""
        if self.counts is None:
            ids = self.ids.reshape(len(self), self.num_categories)[places].reshape(-1)
            counts = None
        else:
            counts, sizes = self.counts[places], self.counts.sum(axis=1, dtype=np.int64)
            ends = np.cumsum(sizes)
            ids = self.ids[ranges((ends - sizes)[places], sizes[places])]
        labels = self.labels[places] if len(self.labels) else self.labels
        return ClickRows(self.numbers[places], ids, counts, labels, self.num_categories)

    def part(self, index: int, count: int) -> "ClickRows":
        """Part number `index` of `count` equal ones."""
        size = len(self) // count
        return self.take(np.arange(index * size, (index + 1) * size))

    def singles(self) -> list["ClickRows"]:
        """Each row as a block of its own."""
        return [self.take(np.array([place])) for place in range(len(self))]

    @staticmethod
    def joined(parts: Sequence["ClickRows"]) -> "ClickRows":
        """All rows of several blocks, in their order; all have counts, or none has."""
        first = parts[0]
        counts = None
        if first.counts is not None:
            counts = np.concatenate([part.counts for part in parts if part.counts is not None])
        numbers, ids, labels = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("numbers", "ids", "labels")
        )
        return ClickRows(numbers, ids, counts, labels, first.num_categories)


def ranges(starts: Array, sizes: Array) -> Array:
    """All numbers of the ranges start, start + 1, ..., start + size - 1, one after the other."""
    shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return np.asarray(shifts + np.arange(int(sizes.sum())))


def raw_rows(
    cells: Cells, columns: Columns, where: str, refuse: Refuse, *, labelled: bool = True
) -> RawRows:
    """Cells as numbers and keys, by the rules of the columns.

    Args:
        cells: some rows.
        columns: roles and rules.
        where: the file, for messages.
        refuse: gets rows that cannot be read; they are left out of the result.
        labelled: whether label, time and hashes are wanted.
    """
    reader = _Reader(cells, where)
    numbers = [reader.numbers(name, columns) for name in columns.numbers]
    labels = reader.labels(columns.label) if labelled else np.zeros(0, np.uint8)
    times: Array = np.zeros(0)
    if labelled and columns.time is not None:
        times = reader.times(columns.time)
    keys = [reader.keys(category) for category in columns.categories]
    good = reader.good
    for place in np.flatnonzero(~good).tolist():
        refuse(cells.lines[place], reader.faults[place])
    hashes = np.array(cells.row_hashes() if labelled else [], np.uint32)
    table = np.stack(numbers, axis=1) if numbers else np.zeros((len(good), 0), np.float32)
    flat, counts = _row_major(keys, good)
    kept = [part[good] if len(part) else part for part in (labels, times, hashes)]
    return RawRows(table[good], flat, counts, *kept)


def _row_major(keys: list[tuple[Keys, Array | None]], good: Array) -> tuple[Keys, Array | None]:
    """Keys of all categories, row by row."""
    if all(sizes is None for _, sizes in keys):
        flat = [column[good] for column, _ in keys]
        stacked = np.stack(flat, axis=1) if flat else np.zeros((int(good.sum()), 0), np.uint64)
        return stacked.reshape(-1), None
    count = len(good)
    sizes_NC = np.stack(
        [np.ones(count, np.int32) if sizes is None else sizes for _, sizes in keys], axis=1
    )
    owner = np.concatenate([np.repeat(np.arange(count), column) for column in sizes_NC.T])
    order = np.argsort(owner, kind="stable")
    flat_keys = np.concatenate([column for column, _ in keys])[order]
    return flat_keys[good[owner[order]]], sizes_NC[good]


class _Reader:
    """Columns of a chunk, and what is wrong with its rows."""

    def __init__(self, cells: Cells, where: str) -> None:
        self._cells, self._where = cells, where
        self.good = np.ones(len(cells.lines), bool)
        self.faults: dict[int, str] = {}

    def numbers(self, name: str, columns: Columns) -> Array:
        """float32 [N] by the rules for negative, missing and NaN."""
        texts = self._cells.columns[name]
        values, empty = self._floats(name, texts)
        odd = ~np.isfinite(values) & ~empty & self.good
        if columns.nan == "error":
            self._stop(odd, name, "expected a finite number; nan: missing counts it as missing")
        values = np.where(np.isfinite(values), values, np.nan)
        if columns.missing == "error":
            self._stop(np.isnan(values) & self.good, name, "is missing")
        negative = values < 0
        if columns.negative == "error":
            self._stop(negative & self.good, name, "is negative; expected a number from 0")
        if columns.negative == "zero":
            values = np.where(negative, 0.0, values)
        if columns.transform == "log1p":
            values = np.copysign(np.log1p(np.abs(values)), values)
        return values.astype(np.float32)

    def labels(self, name: str) -> Array:
        """uint8 [N]; rows with anything but 0 or 1 are bad."""
        texts = self._cells.columns[name]
        values, empty = self._floats(name, texts)
        self._bad(~np.isin(values, (0, 1)) | empty, name, "expected 0 or 1")
        return np.asarray(values == 1).astype(np.uint8)

    def times(self, name: str) -> Array:
        """float64 [N]: seconds, or whatever numbers the column has."""
        texts = self._cells.columns[name]
        try:
            values = np.array([*map(float, texts)])
        except ValueError:
            values = np.array([*map(_seconds, texts)])
        self._bad(~np.isfinite(values), name, "expected a number or an ISO 8601 time")
        return values

    def keys(self, category: Category) -> tuple[Keys, Array | None]:
        """Keys of all ids of a category, and how many each row has; None: one each."""
        columns = [self._cells.columns[name] for name in category.columns]
        if len(columns) > 1:
            return crossed_keys([text_keys(column) for column in columns]), None
        if category.separator is None:
            return self._plain(category, columns[0], np.arange(len(columns[0]))), None
        split = [text.split(category.separator) if text else [] for text in columns[0]]
        sizes = np.fromiter(map(len, split), np.int32, len(split))
        texts = [part for parts in split for part in parts]
        return self._plain(category, texts, np.repeat(np.arange(len(split)), sizes)), sizes

    def _plain(self, category: Category, texts: list[str], owner: Array) -> Keys:
        if category.ids != "index":
            return text_keys(texts)
        # An empty cell is out of range, as any other that the table has no row for.
        found = [_whole(text) for text in texts]
        wrong = np.zeros(len(self.good), bool)
        wrong[owner[[value is None for value in found]]] = True
        self._bad(wrong, category.columns[0], "expected a whole number")
        return np.array([0 if value is None else value for value in found], np.uint64)

    def _floats(self, name: str, texts: list[str]) -> tuple[Array, Array]:
        try:
            values = np.array([float(text) if text else np.nan for text in texts])
        except ValueError:
            found = [*map(_float, texts)]
            self._bad(np.array([value is None for value in found]), name, "expected a number")
            values = np.array([np.nan if value is None else value for value in found])
        empty = np.isnan(values)
        for place in np.flatnonzero(empty).tolist():
            empty[place] = not texts[place].strip()
        return values, empty

    def _bad(self, wrong: Array, name: str, expected: str) -> None:
        for place in np.flatnonzero(wrong & self.good).tolist():
            got = ascii(self._cells.columns[name][place])[:40]
            self.faults[place] = f"has {got} in {name!r}; {expected}"
        self.good &= ~wrong

    def _stop(self, wrong: Array, name: str, what: str) -> None:
        """An error that the rules ask for, in one of the rows."""
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            got = ascii(self._cells.columns[name][place])[:40]
            raise InputError(
                f"{self._where}: {self._cells.unit} {self._cells.lines[place]}: {name!r} has {got}:"
                f" {what}."
            )


def _float(text: str) -> float | None:
    """A number, NaN for an empty cell; None for what is neither."""
    try:
        return float(text) if text.strip() else np.nan
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    """The number of a row modulo 2^64; what no table has for an empty cell and for one below 0."""
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not stripped:
        return 2**64 - 1
    if not digits.isascii() or not digits.isdecimal() or len(digits) > MAX_DIGITS:
        return None
    return int(stripped) % 2**64


def _seconds(text: str) -> float:
    """Since 1970, in UTC where the text names no zone; NaN for what is no time."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return np.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
