# SPDX-License-Identifier: Apache-2.0
"""Texts from a user's files: plain text, JSON lines, tables, token tensors; one reader each.

The names of columns say what a row is: a text, a text with a label, or two texts with a score.
Tables and JSON lines know the same names. Legend: N samples, T tokens.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gossamer.data.files.table_files import TableRow, read_text, table_rows
from gossamer.errors import InputError
from gossamer.io.safe_files.documents import parse_json_line
from gossamer.io.safe_files.tensors import read_header, read_tensors
from gossamer.named_files import open_named, size_of

MAX_CLASSES = 10_000
_TEXT_NAMES = ("text", "sentence")
_PAIR_NAMES = (("text_a", "text_b"), ("sentence1", "sentence2"))
_LABELLED_LINE = 'Each line is an object such as {"text": "good film", "label": 1}.'


@dataclass(frozen=True)
class Pair:
    """Two texts and how alike people find them."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class Texts:
    """What a file of texts holds.

    Attributes:
        path: for messages.
        stream: the text as it stands.
        texts: one entry per line that is not blank.
        pairs: with text_a, text_b and score; their texts are in `texts` too.
        labels: a class per text; empty if there are none.
        ids_NT: token ids, if the file holds them instead of text.
    """

    path: Path
    stream: str = ""
    texts: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    ids_NT: torch.Tensor | None = None  # noqa: N815  (shape suffix)
    labels: tuple[int, ...] = ()


def read_samples(path: Path, *, labelled: bool = False) -> Texts:
    """Read a .txt, .jsonl, .csv, .tsv or .safetensors file.

    Lines of a .jsonl file have "text" (or "sentence"), maybe with a "label", or "text_a", "text_b"
    and "score"; the first line of a table names such columns; a .safetensors file has a tensor
    `input_ids` [N, T]. Labels are read only if `labelled`.
    """
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "there is no such file"
        raise InputError(f"{path}: {what}. Give a .txt, .jsonl, .csv, .tsv or .safetensors file.")
    if path.suffix in _ROW_READERS:
        return _samples_of(path, labelled=labelled)
    if path.suffix in _READERS:
        return _READERS[path.suffix](path)
    raise InputError(
        f"{path}: expected a file that ends with .txt, .md, .text, .jsonl, .csv, .tsv or"
        " .safetensors."
    )


def read_labelled(path: Path) -> list[tuple[str, int]]:
    """Read a .jsonl, .csv or .tsv file in which every row is a text with a label."""
    if path.suffix not in _ROW_READERS or not path.is_file():
        endings = ", ".join(_ROW_READERS)
        raise InputError(f"{path}: expected a file that is there: {endings}. {_LABELLED_LINE}")
    samples = []
    for row in _rows(path):
        try:
            samples.append((_text_in(row, blank=True), _label_in(row)))
        except InputError as error:
            if not row.line:
                raise
            raise InputError(
                f"{row.where}: expected a text and a label in [0, {MAX_CLASSES}), got"
                f" {row.line[:60]!r}. {_LABELLED_LINE}"
            ) from error
    if not samples:
        raise InputError(f"{path}: is empty. {_LABELLED_LINE}")
    return samples


def check_scores(samples: Texts) -> None:
    """Raise InputError if pairs cannot be ranked, because all their scores are the same."""
    scores = {pair.score for pair in samples.pairs}
    if len(scores) == 1:
        raise InputError(
            f"{samples.path}: all {len(samples.pairs)} pairs have the score {scores.pop():g}, so no"
            " model can be told from another by them. Give pairs with different scores, or a file"
            " with texts alone."
        )


def _rows(path: Path) -> Iterator[TableRow]:
    return _ROW_READERS[path.suffix](path, read_text(path))


def _check_names(names: list[str], path: Path) -> None:
    if _kind_of(names) is None:
        advice = "Put a line with the names of the columns on top."
        other = [sign for sign in ";\t|" if len(names) == 1 and sign in names[0]]
        if other:
            advice = f"Cells are separated by {other[0]!r} here: save the table with commas."
        raise InputError(
            f"{path}:1: expected a column {' or '.join(_TEXT_NAMES)}, or two"
            f" ({', '.join(_PAIR_NAMES[0])}) and score; found"
            f" {', '.join(names[:8])[:200]!r}. {advice}"
        )


def _json_rows(path: Path, text: str) -> Iterator[TableRow]:
    # Not splitlines: U+2028 and the like may stand inside of a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            item = parse_json_line(line, where)
            yield TableRow(where, item if isinstance(item, dict) else {}, line)


def _kind_of(names: Iterable[str]) -> str | None:
    """What a row with these columns is: "pair", "label", "text", or nothing that is known."""
    has = set(names)
    if "score" in has and any(set(pair) <= has for pair in _PAIR_NAMES):
        return "pair"
    if not has & set(_TEXT_NAMES):
        return None
    return "label" if "label" in has else "text"


def _samples_of(path: Path, *, labelled: bool) -> Texts:
    """Pairs where a row has two texts and a score; all texts have a label, or none has."""
    texts: list[str] = []
    pairs: list[Pair] = []
    labels: list[int] = []
    for row in _rows(path):
        kind = _kind_of(row.cells)
        if kind is None:
            raise InputError(
                f'{row.where}: expected {{"text": "..."}}, maybe with "label": 1, or'
                f' {{"text_a": "...", "text_b": "...", "score": 3.5}}, got {row.line[:60]!r}.'
            )
        if kind == "pair":
            pairs.append(_pair_in(row))
            texts += [pairs[-1].first, pairs[-1].second]
            continue
        texts.append(_text_in(row))
        if labelled and kind == "label":
            labels.append(_label_in(row))
    if labels and (pairs or len(labels) != len(texts)):
        raise InputError(f"{path}: {len(labels)} of {len(texts)} texts have a label; expected all.")
    return Texts(path, "\n".join(texts), tuple(texts), tuple(pairs), labels=tuple(labels))


def _pair_in(row: TableRow) -> Pair:
    first, second = next(pair for pair in _PAIR_NAMES if set(pair) <= set(row.cells))
    found = row.cells["score"]
    try:
        score = float(found)
    except (TypeError, ValueError) as error:
        raise InputError(f"{row.where}: score is not a number, got {found!r}.") from error
    if not math.isfinite(score):
        raise InputError(
            f"{row.where}: score is {score}; expected a finite number. Leave this pair out, or give"
            " it its score."
        )
    return Pair(_text_in(row, first), _text_in(row, second), score)


def _text_in(row: TableRow, name: str | None = None, *, blank: bool = False) -> str:
    """The text in a column; None takes the first that is known."""
    column = name or next((each for each in _TEXT_NAMES if each in row.cells), _TEXT_NAMES[0])
    found = row.cells.get(column)
    if not isinstance(found, str) or not (blank or found.strip()):
        raise InputError(f"{row.where}: has no text in column {column!r}.")
    return found


def _label_in(row: TableRow) -> int:
    """A class, counted from 0."""
    found = row.cells.get("label")
    number = int(found) if isinstance(found, str) and found.strip().isdecimal() else found
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_CLASSES:
        raise InputError(
            f"{row.where}: label must be a whole number in [0, {MAX_CLASSES}), got"
            f" {repr(found)[:60]}."
        )
    return number


def _read_lines(path: Path) -> Texts:
    text = read_text(path)
    return Texts(path, text, tuple(filter(str.strip, text.splitlines())))


def _read_ids(path: Path) -> Texts:
    with open_named(path, InputError) as file:
        header = read_header(file, size_of(file), str(path))
        if "input_ids" not in header.tensors:
            raise InputError(
                f"{path}: expected a tensor input_ids [samples, tokens], found"
                f" {', '.join(sorted(header.tensors)[:5]) or 'none'}."
            )
        ids = read_tensors(file, header, str(path))["input_ids"]
    if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise InputError(
            f"{path}: input_ids must be int64 [samples, tokens] and not empty, got {ids.dtype}"
            f" {list(ids.shape)}."
        )
    return Texts(path, ids_NT=ids.long())


# The table of file types: rows of texts, which may have labels or scores, and everything else.
_ROW_READERS: dict[str, Callable[[Path, str], Iterator[TableRow]]] = {
    ".jsonl": _json_rows,
    ".csv": partial(table_rows, check=_check_names),
    ".tsv": partial(table_rows, check=_check_names),
}
_READERS = {
    **dict.fromkeys((".txt", ".md", ".text"), _read_lines),
    ".safetensors": _read_ids,
}
