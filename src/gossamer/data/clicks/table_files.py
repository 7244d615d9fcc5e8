# SPDX-License-Identifier: Apache-2.0
"""Rows of a .csv, .tsv, .txt or .jsonl file, some thousand at a time: a file of any size streams.

Rows that cannot be read are left out, counted, and named by their lines.
"""

import csv
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from gossamer.data.clicks.columns import CRITEO_CATEGORIES, CRITEO_NUMBERS, Columns
from gossamer.errors import InputError
from gossamer.io.safe_files.documents import parse_json_line
from gossamer.named_files import open_named

CHUNK_ROWS = 16384
MAX_LINE_BYTES = 1 << 20
ENDINGS = (".csv", ".tsv", ".txt", ".jsonl")
_SHOWN = 3
_MARK = "\ufeff"


@dataclass
class LeftOut:
    """Rows that were not read, and why.

    Attributes:
        where: the file.
        unit: what a row is called: a line of a file, or a row of a request.
        count: how many.
        first: the first few: line and reason.
    """

    where: str
    unit: str = "line"
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, line: int, why: str) -> None:
        """One more."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(f"{self.unit} {line} {why}")

    def __str__(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return f"{self.where}: {self.count} rows were left out: {'; '.join(self.first)}{more}."


@dataclass(frozen=True)
class Cells:
    """Some rows of a file.

    Attributes:
        lines: where each row stands in the file.
        columns: texts by name, one per row; an empty text is a missing value.
        unit: what `lines` counts: lines, or rows of a request.
    """

    lines: list[int]
    columns: Mapping[str, list[str]]
    unit: str = "line"

    def row_hashes(self) -> list[int]:
        """A CRC of the cells of each row: what a split by hash goes by."""
        joined = map("\x1f".join, zip(*self.columns.values(), strict=True))
        return [zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in joined]


@contextmanager
def open_cells(
    path: Path,
    columns: Columns,
    left_out: LeftOut,
    *,
    labelled: bool = True,
    watch: Callable[[bytes], object] = lambda line: None,
) -> Iterator[Iterator[Cells]]:
    """The rows of a file in chunks.

    Args:
        path: ends with .csv, .tsv, .txt or .jsonl; .txt has tabs.
        columns: which columns are read; the first line names them, unless the format is criteo.
        left_out: gets the rows that have other columns.
        labelled: whether label and time are read; without, a file need not have them, and one of
            Criteo's format may begin with a label or not.
        watch: gets every line as it is, to hash what was read.
    """
    if path.suffix not in ENDINGS:
        raise InputError(f"{path}: expected a file that ends with {', '.join(ENDINGS)}.")
    wanted = list(columns.inputs)
    if labelled:
        wanted += [columns.label, *([] if columns.time is None else [columns.time])]
    with open_named(path, InputError) as file:
        lines = _lines(file, path, watch)
        read = _json_chunks if path.suffix == ".jsonl" else _table_chunks
        yield read(lines, path, columns, wanted, left_out)


def _lines(file: BinaryIO, path: Path, watch: Callable[[bytes], object]) -> Iterator[str]:
    for number in itertools.count(1):
        raw = file.readline(MAX_LINE_BYTES)
        if not raw:
            return
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            raise InputError(f"{path}:{number}: is longer than {MAX_LINE_BYTES} bytes.")
        watch(raw)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}:{number}: is not UTF-8 text (byte {error.start}). Convert it first: iconv"
                " -t UTF-8."
            ) from error
        yield text.removeprefix(_MARK) if number == 1 else text


Rows = list[list[str]]


def _table_chunks(
    lines: Iterator[str], path: Path, columns: Columns, wanted: list[str], left_out: LeftOut
) -> Iterator[Cells]:
    numbered = _csv_rows(lines, path) if path.suffix == ".csv" else _tab_rows(lines)
    names: list[str] | None = None
    places: list[int] = []
    for numbers, rows in numbered:
        if names is None:
            if columns.format == "table":
                names = [name.strip() for name in rows[0]]
                numbers, rows = numbers[1:], rows[1:]
            else:
                names = _criteo_names(len(rows[0]), columns.label in wanted, columns.label)
            places = _places(names, wanted, path)
        if any(len(cells) != len(names) for cells in rows):
            numbers, rows = _whole_rows(numbers, rows, len(names), left_out)
        if rows:
            found = list(zip(*rows, strict=True))
            by_name = {name: list(found[p]) for name, p in zip(wanted, places, strict=True)}
            yield Cells(numbers, by_name)


def _tab_rows(lines: Iterator[str]) -> Iterator[tuple[list[int], Rows]]:
    """Some thousand rows at a time; a quotation mark is a character as any other."""
    begin = 1
    while chunk := list(itertools.islice(lines, CHUNK_ROWS)):
        rows = [line.rstrip("\r\n").split("\t") for line in chunk]
        yield list(range(begin, begin + len(rows))), rows
        begin += len(rows)


def _csv_rows(lines: Iterator[str], path: Path) -> Iterator[tuple[list[int], Rows]]:
    """The same, quoted as spreadsheets do it."""
    reader = csv.reader(lines, strict=True)
    numbers: list[int] = []
    rows: Rows = []
    try:
        for cells in reader:
            numbers.append(reader.line_num)
            rows.append(cells)
            if len(rows) == CHUNK_ROWS:
                yield numbers, rows
                numbers, rows = [], []
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is no table ({error}).") from error
    if rows:
        yield numbers, rows


def _whole_rows(
    numbers: list[int], rows: Rows, width: int, left_out: LeftOut
) -> tuple[list[int], Rows]:
    """Rows that have all columns; the others are left out, but for empty lines."""
    good = []
    for number, cells in zip(numbers, rows, strict=True):
        if len(cells) == width:
            good.append((number, cells))
        elif any(map(str.strip, cells)):
            left_out.add(number, f"has {len(cells)} of {width} columns")
    return [number for number, _ in good], [cells for _, cells in good]


def _criteo_names(found: int, labelled: bool, label: str) -> list[str]:
    """Names of a file without any; files to be scored may have no label."""
    names = [*CRITEO_NUMBERS, *CRITEO_CATEGORIES]
    return names if not labelled and found == len(names) else [label, *names]


def _places(names: list[str], wanted: list[str], path: Path) -> list[int]:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InputError(
            f"{path}:1: has no column {', '.join(map(repr, missing[:5]))}; found"
            f" {', '.join(names[:12])[:200]!r}. Put the names of the columns on top, or change them"
            " in the recipe."
        )
    for name in wanted:
        if names.count(name) > 1:
            raise InputError(f"{path}:1: has {names.count(name)} columns {name!r}.")
    return [names.index(name) for name in wanted]


def _json_chunks(
    lines: Iterator[str], path: Path, columns: Columns, wanted: list[str], left_out: LeftOut
) -> Iterator[Cells]:
    numbered = enumerate(lines, start=1)
    while chunk := list(itertools.islice(numbered, CHUNK_ROWS)):
        numbers: list[int] = []
        rows: Rows = []
        for number, line in chunk:
            if line.strip():
                found = parse_json_line(line, f"{path}:{number}")
                try:
                    rows.append(row_cells(found, columns, wanted))
                    numbers.append(number)
                except InputError as error:
                    left_out.add(number, str(error))
        if rows:
            by_name = dict(zip(wanted, map(list, zip(*rows, strict=True)), strict=True))
            yield Cells(numbers, by_name)


def row_cells(found: Any, columns: Columns, wanted: list[str]) -> list[str]:
    """The cells of a JSON object; null and nothing are a missing value only if written down."""
    if not isinstance(found, dict):
        raise InputError(f"is {type(found).__name__}; expected an object")
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(f"has no {', '.join(map(repr, missing[:3]))}")
    separators = {c.columns[0]: c.separator for c in columns.categories if c.separator is not None}
    return [_cell(found[name], name, separators.get(name)) for name in wanted]


def _cell(value: Any, name: str, separator: str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and separator is not None:
        parts = [_cell(item, name, None) for item in value]
        if any(separator in part for part in parts):
            raise InputError(f"has {separator!r} inside of a text of {name!r}")
        return separator.join(parts)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"has a {type(value).__name__} in {name!r}; expected a text or a number")
    return value if isinstance(value, str) else repr(value)
