# SPDX-License-Identifier: Apache-2.0
"""What a model's inputs are made with: roles of columns, vocabularies, means and deviations.

It is learned from the training part alone, belongs to the artifact as `features.arrays`, and
makes the same numbers and ids of a row at training and at serving. Its digest stands in the model:
a vocabulary of another run would give every id the row of another one.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gossamer.data.clicks.columns import Category, Columns, columns_of
from gossamer.data.clicks.keys import Keys
from gossamer.data.clicks.rows import Array, ClickRows, RawRows, raw_rows
from gossamer.data.clicks.table_files import Cells, LeftOut, open_cells, row_cells
from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.documents import canonical_json, parse_json
from gossamer.io.safe_files.tensors import read_header, read_tensors, write_tensors

FEATURES_FILE = "features.arrays"
_COLUMNS, _MEAN, _DEVIATION, _WORDS = "columns", "mean", "deviation", "vocabulary"
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Features:
    """From raw rows to what a model takes.

    Attributes:
        columns: roles and rules.
        mean: float64 [I], of the transformed numbers of the training part.
        deviation: float64 [I], never below 1e-6.
        words: uint64 keys of each category, in rising order; empty without a vocabulary.
    """

    columns: Columns
    mean: Array
    deviation: Array
    words: tuple[Keys, ...]

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of each table."""
        pairs = zip(self.columns.categories, self.words, strict=True)
        return tuple(category.num_rows(len(words)) for category, words in pairs)

    @cached_property
    def content(self) -> bytes:
        """The file `features.arrays`: canonical, so that equal features have equal bytes."""
        plain = np.frombuffer(canonical_json(self.columns.plain()), np.uint8)
        tensors = {
            _COLUMNS: _tensor(plain),
            _MEAN: _tensor(self.mean),
            _DEVIATION: _tensor(self.deviation),
        }
        for index, words in enumerate(self.words):
            tensors[f"{_WORDS}.{index}"] = _tensor(words)
        file = io.BytesIO()
        write_tensors(file.write, tensors)
        return file.getvalue()

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content, 32 bytes."""
        return hashlib.sha256(self.content).digest()

    def encode(self, raw: RawRows, where: str, lines: Sequence[int] | None = None) -> ClickRows:
        """Standardised numbers and rows of tables.

        Args:
            raw: cells as numbers and keys, by the same columns.
            where: what rows are called in messages, with their number behind it.
            lines: the numbers of the rows; None counts from 1.
        """
        numbers = (raw.numbers - self.mean) / self.deviation
        if self.columns.missing == "zero":
            numbers = np.where(np.isnan(numbers), -self.mean / self.deviation, numbers)
        numbers = np.nan_to_num(numbers, nan=0.0).astype(np.float32)
        count = len(self.words)
        ids = np.empty(len(raw.keys), np.int32)
        if raw.counts is None:
            table = np.tile(np.arange(count), len(numbers))
            owner = np.repeat(np.arange(len(numbers)), count)
        else:
            table = np.repeat(np.tile(np.arange(count), len(numbers)), raw.counts.reshape(-1))
            owner = np.repeat(np.arange(len(numbers)), raw.counts.sum(axis=1))
        for index, (category, words) in enumerate(
            zip(self.columns.categories, self.words, strict=True)
        ):
            chosen = slice(index, None, count) if raw.counts is None else table == index
            found, known = _rows_of(category, words, raw.keys[chosen])
            if category.unknown == "error" and not known.all():
                place = int(owner[chosen][np.flatnonzero(~known)[0]])
                what = "the table" if category.ids == "index" else "the training part"
                number = place + 1 if lines is None else lines[place]
                raise InputError(
                    f"{where} {number}: {category.name!r} has an id that {what} does not have,"
                    " which unknown: error refuses. Train with unknown: shared or hash to take it."
                )
            ids[chosen] = found
        return ClickRows(numbers, ids, raw.counts, raw.labels, count)

    def read_file(self, path: Path) -> Iterator[ClickRows]:
        """Rows of a file without their labels, some thousand at a time; each is read or refused."""
        left_out = LeftOut(str(path))
        with open_cells(path, self.columns, left_out, labelled=False) as chunks:
            for cells in chunks:
                raw = raw_rows(cells, self.columns, str(path), left_out.add, labelled=False)
                if left_out.count:
                    break
                yield self.encode(raw, f"{path}: line", cells.lines)
        if left_out.count:
            raise InputError(f"{path}: {left_out.first[0]}. No row may be left out of scores.")

    def read_labelled(self, path: Path, most: int) -> ClickRows:
        """The first rows of a file with their labels, at most so many; each is read or refused."""
        parts, count = [], 0
        left_out = LeftOut(str(path))
        with open_cells(path, self.columns, left_out) as chunks:
            for cells in chunks:
                raw = raw_rows(cells, self.columns, str(path), left_out.add)
                if left_out.count:
                    raise InputError(f"{path}: {left_out.first[0]}.")
                parts.append(self.encode(raw, f"{path}: line", cells.lines))
                count += len(parts[-1])
                if count >= most:
                    break
        if not parts:
            raise InputError(f"{path}: has no rows.")
        return ClickRows.joined(parts).take(np.arange(min(count, most)))

    def read_objects(self, rows: Sequence[Any], where: str) -> ClickRows:
        """Rows of a request: one JSON object each, with the columns by name."""
        wanted, found = list(self.columns.inputs), []
        for number, row in enumerate(rows):
            try:
                found.append(row_cells(row, self.columns, wanted))
            except InputError as error:
                raise InputError(f"{where}[{number}] {error}.") from error
        columns = map(list, zip(*found, strict=True)) if found else ([] for _ in wanted)
        cells = Cells([*range(len(rows))], dict(zip(wanted, columns, strict=True)), "row")
        left_out = LeftOut(where, "row")
        raw = raw_rows(cells, self.columns, where, left_out.add, labelled=False)
        if left_out.count:
            raise InputError(f"{where}: {left_out.first[0]}.")
        return self.encode(raw, f"{where}: row", cells.lines)

    def check_model(self, model: nn.Module, where: str) -> None:
        """InputError unless a model's tables are those of these features; one may be unmarked."""
        rows = getattr(model, "rows", self.rows)
        digest = getattr(model, "features_digest", None)
        held = bytes(digest.tolist()) if isinstance(digest, torch.Tensor) else b""
        if rows != self.rows or (any(held) and held != self.digest):
            raise InputError(
                f"{where}: its vocabularies are from another run (digest {self.digest.hex()[:8]},"
                f" the model was trained with {held.hex()[:8] or 'others'}), so ids would get the"
                f" rows of others. Use the {FEATURES_FILE} that was saved with the model."
            )

    def mark(self, model: nn.Module, where: str) -> None:
        """Write the digest into a model; refuse one that was trained with other features."""
        self.check_model(model, where)
        held = getattr(model, "features_digest", None)
        if isinstance(held, torch.Tensor):
            held.copy_(torch.frombuffer(bytearray(self.digest), dtype=torch.uint8))


def _tensor(array: Array) -> torch.Tensor:
    """A copy; of an empty array one with the strides that writers of tensors expect."""
    copied = torch.from_numpy(array.copy())
    return copied if len(array) else torch.zeros(0, dtype=copied.dtype)


def _rows_of(category: Category, words: Keys, keys: Keys) -> tuple[Array, Array]:
    """Rows of a table, and which of them stand for an id that it knows."""
    size = np.uint64(category.size)
    if category.ids == "hash":
        return keys % size, np.ones(len(keys), bool)
    if category.ids == "index":
        known = keys < size
        other = keys % size if category.unknown == "hash" else size
        return np.where(known, keys, other), known
    places = np.searchsorted(words, keys)
    known = np.zeros(len(keys), bool)
    inside = places < len(words)
    known[inside] = words[places[inside]] == keys[inside]
    if category.unknown == "hash":
        return np.where(known, places, np.uint64(len(words)) + keys % size), known
    # Row 0 is shared by all that have none of their own.
    return np.where(known, places + 1, 0), known


def read_features(content: bytes | None, where: str) -> Features:
    """Features from the bytes of `features.arrays`; everything in it is checked.

    Args:
        content: the file; None where there is none.
        where: the model, for messages.
    """
    if content is None:
        raise ArtifactError(
            f"{where}: has no {FEATURES_FILE} beside its weights, so rows cannot be turned into ids"
            " and numbers. Score with the artifact that 'gossamer train' wrote for task clicks."
        )
    name = f"{where}: {FEATURES_FILE}"
    file = io.BytesIO(content)
    tensors = read_tensors(file, read_header(file, len(content), name), name)
    try:
        plain = tensors.pop(_COLUMNS)
        mean, deviation = (tensors.pop(key).numpy() for key in (_MEAN, _DEVIATION))
        columns = columns_of(parse_json(plain.numpy().tobytes(), name))
        words = tuple(
            tensors.pop(f"{_WORDS}.{index}").numpy() for index in range(len(columns.categories))
        )
    except (KeyError, InputError) as error:
        raise ArtifactError(f"{name}: {error} is missing or not what belongs there.") from error
    shape = (len(columns.numbers),)
    fits = (
        not tensors
        and all(part.dtype == np.float64 and part.shape == shape for part in (mean, deviation))
        and bool(np.isfinite(mean).all())
        and bool((np.isfinite(deviation) & (deviation >= _LEAST_DEVIATION)).all())
    )
    for category, keys in zip(columns.categories, words, strict=True):
        fits = fits and keys.dtype == np.uint64 and keys.ndim == 1
        fits = fits and bool((keys[1:] > keys[:-1]).all())
        fits = fits and (category.ids == "vocabulary" or not len(keys))
    if not fits:
        raise ArtifactError(
            f"{name}: its arrays are not means, deviations and rising keys of the columns it names."
        )
    return Features(columns, mean, deviation, words)


class FeatureLearner:
    """Statistics of the training part, gathered block by block."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        size = len(columns.numbers)
        self._count, self._sum, self._squares = (np.zeros(size) for _ in range(3))
        empty = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._words: list[tuple[Keys, Array]] = [empty for _ in columns.categories]

    def add(self, raw: RawRows) -> None:
        """More rows of the training part."""
        numbers = raw.numbers.astype(np.float64)
        there = ~np.isnan(numbers)
        self._count += there.sum(axis=0)
        self._sum += np.where(there, numbers, 0.0).sum(axis=0)
        self._squares += np.where(there, numbers**2, 0.0).sum(axis=0)
        categories = self._columns.categories
        table = None
        if raw.counts is not None:
            table = np.repeat(
                np.tile(np.arange(len(categories)), len(numbers)), raw.counts.reshape(-1)
            )
        for index, category in enumerate(categories):
            if category.ids == "vocabulary":
                step = slice(index, None, len(categories))
                keys = raw.keys[step] if table is None else raw.keys[table == index]
                self._words[index] = _merged(self._words[index], keys)

    def features(self) -> Features:
        """What was learned."""
        count = np.maximum(self._count, 1)
        mean = self._sum / count
        variance = np.maximum(self._squares / count - mean**2, 0.0)
        # A column that never changes says nothing: it becomes 0.
        deviation = np.where(variance > _LEAST_DEVIATION**2, np.sqrt(variance), 1.0)
        words = tuple(
            keys[counts >= category.floor]
            for category, (keys, counts) in zip(self._columns.categories, self._words, strict=True)
        )
        return Features(self._columns, mean, deviation, words)


def _merged(held: tuple[Keys, Array], keys: Sequence[int] | Keys) -> tuple[Keys, Array]:
    found, counts = np.unique(np.asarray(keys, np.uint64), return_counts=True)
    both, inverse = np.unique(np.concatenate([held[0], found]), return_inverse=True)
    total = np.zeros(len(both), np.int64)
    np.add.at(total, inverse, np.concatenate([held[1], counts]))
    return both, total
