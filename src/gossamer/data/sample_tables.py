# SPDX-License-Identifier: Apache-2.0
"""Texts in tables and JSON lines: sentences, pairs with scores, texts with labels.

The names of columns say what a row is; tables and JSON lines know the same ones.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer.errors import InputError
from gossamer.io.safe_files.documents.strict_json import parse_json_line

TEXT_NAMES = ("text", "sentence")
PAIR_NAMES = (("text_a", "text_b"), ("sentence1", "sentence2"))
SCORE_NAME = "score"
LABEL_NAME = "label"
MAX_CLASSES = 10_000

Row = tuple[int, Mapping[str, Any]]


def table_rows(path: Path, text: str) -> Iterator[Row]:
    """(line, cells by the name of their column) of a .csv or .tsv file.

    A .csv file is quoted as spreadsheets do it; in a .tsv file a quotation mark is a character like
    any other.
    """
    if path.suffix == ".tsv":
        reader = csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(io.StringIO(text), strict=True)
    try:
        names = [name.strip().lower() for name in next(reader)]
        if kind_of(names) is None:
            other = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), "")
            advice = "Put a line with the names of the columns on top."
            if other:
                advice = f"Cells are separated by {other!r} here: save the table with commas."
            raise InputError(
                f"{path}:1: expected a column {' or '.join(TEXT_NAMES)}, or two"
                f" ({', '.join(PAIR_NAMES[0])}) and {SCORE_NAME}; found"
                f" {', '.join(names[:8])[:200]!r}. {advice}"
            )
        twice = [name for name, count in Counter(names).items() if name and count > 1]
        if twice:
            raise InputError(
                f"{path}:1: has {names.count(twice[0])} columns {twice[0]!r}, so it is not clear"
                " which one is meant. Give each column a name of its own, or leave one out."
            )
        for cells in reader:
            # Tables with tabs are known to have more cells than names, and no text is cut by that.
            if path.suffix == ".csv" and any(cell.strip() for cell in cells[len(names) :]):
                raise InputError(
                    f"{path}:{reader.line_num}: has {len(cells)} cells, but the first line names"
                    f" {len(names)} columns. Put a text with commas in it between quotation marks."
                )
            if any(cell.strip() for cell in cells):
                filled = [*cells, *[""] * len(names)]
                yield reader.line_num, dict(zip(names, filled, strict=False))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is no table ({error}).") from error


def json_rows(path: Path, text: str) -> Iterator[Row]:
    """(line, object) of a .jsonl file."""
    # Not splitlines: U+2028 and the like may stand inside of a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        item = parse_json_line(line, f"{path}:{number}")
        if not isinstance(item, dict) or kind_of(list(item)) is None:
            raise InputError(
                f'{path}:{number}: expected {{"text": "..."}}, maybe with "label": 1, or'
                f' {{"text_a": "...", "text_b": "...", "score": 3.5}}, got {line[:60]!r}.'
            )
        yield number, item


def kind_of(names: list[str]) -> str | None:
    """What a row with these columns is: "pair", "label", "text", or nothing that is known."""
    has = set(names)
    if SCORE_NAME in has and any(set(pair) <= has for pair in PAIR_NAMES):
        return "pair"
    if not has & set(TEXT_NAMES):
        return None
    return "label" if LABEL_NAME in has else "text"


def pair_in(row: Mapping[str, Any], where: str) -> tuple[str, str, float]:
    """Two texts and their score."""
    first, second = next(pair for pair in PAIR_NAMES if set(pair) <= set(row))
    try:
        score = float(row[SCORE_NAME])
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: score is not a number, got {row[SCORE_NAME]!r}.") from error
    if not math.isfinite(score):
        raise InputError(
            f"{where}: score is {score}; expected a finite number. Leave this pair out, or give it"
            " its score."
        )
    return text_in(row, first, where), text_in(row, second, where), score


def text_in(row: Mapping[str, Any], name: str | None, where: str) -> str:
    """The text in a column; None takes the first that is known."""
    column = name or next(each for each in TEXT_NAMES if each in row)
    found = row.get(column)
    if not isinstance(found, str) or not found.strip():
        raise InputError(f"{where}: has no text in column {column!r}.")
    return found


def label_in(row: Mapping[str, Any], where: str) -> int:
    """A class, counted from 0."""
    found = row[LABEL_NAME]
    number = int(found) if isinstance(found, str) and found.strip().isdecimal() else found
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_CLASSES:
        raise InputError(
            f"{where}: label must be a whole number in [0, {MAX_CLASSES}), got {repr(found)[:60]}."
        )
    return number
