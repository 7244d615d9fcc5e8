# SPDX-License-Identifier: Apache-2.0
"""Tables with commas or tabs whose first line names the columns, row by row; and texts as such."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.errors import InputError
from gossamer.io.safe_files.documents import decode_text
from gossamer.named_files import open_named, read_at_most, size_of

__all__ = ["TableRow", "read_text", "table_rows"]

MAX_TEXT_BYTES = 1 << 30


class TableRow(NamedTuple):
    """A line of a table or of a .jsonl file; `line` is the text of the latter, else empty."""

    where: str
    cells: Mapping[str, Any]
    line: str = ""


def read_text(path: Path) -> str:
    """The text of a file that is not empty; InputError says what else it is."""
    with open_named(path, InputError) as file:
        if size_of(file) > MAX_TEXT_BYTES:
            raise InputError(
                f"{path}: is larger than {MAX_TEXT_BYTES >> 20} MiB. Give a part of it."
            )
        raw = read_at_most(file, MAX_TEXT_BYTES, str(path), InputError)
    text = decode_text(raw, str(path))
    if not text.strip():
        raise InputError(f"{path}: is empty; expected some text.")
    return text


def table_rows(
    path: Path, text: str, check: Callable[[list[str], Path], None]
) -> Iterator[TableRow]:
    """Rows by names of columns, in lower case; empty lines are left out.

    A .csv file is quoted as spreadsheets do it; in others a quotation mark is a character.

    Args:
        path: for its ending, and for messages.
        text: of the file.
        check: raises InputError if it does not like the names.
    """
    is_csv = path.suffix == ".csv"
    tabs: Any = {} if is_csv else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader = csv.reader(io.StringIO(text), strict=is_csv, **tabs)
    try:
        names = [name.strip().lower() for name in next(reader)]
        check(names, path)
        _check_twins(names, path)
        for cells in reader:
            # Tables with tabs are known to have more cells than names, and no text is cut by that.
            if is_csv and any(map(str.strip, cells[len(names) :])):
                raise InputError(
                    f"{path}:{reader.line_num}: has {len(cells)} cells, but the first line names"
                    f" {len(names)} columns. Put a text with commas in it between quotation marks."
                )
            if any(map(str.strip, cells)):
                filled = zip(names, cells + [""] * len(names), strict=False)
                yield TableRow(f"{path}:{reader.line_num}", dict(filled))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is no table ({error}).") from error


def _check_twins(names: list[str], path: Path) -> None:
    for name in filter(None, names):
        if names.count(name) > 1:
            raise InputError(
                f"{path}:1: has {names.count(name)} columns {name!r}, so it is not clear which one"
                " is meant. Give each column a name of its own, or leave one out."
            )
