# SPDX-License-Identifier: Apache-2.0
"""Roles of columns: label, numbers, categories; the rules by which cells become numbers and ids.

A recipe says them, and an artifact carries them along as JSON, so everything is checked here again.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from gossamer.errors import InputError

MAX_ROWS = 2**31 - 1
MAX_COLUMNS = 4096
MAX_NAME = 256
CRITEO_NUMBERS = tuple(f"I{index}" for index in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{index}" for index in range(1, 27))

Format = Literal["criteo", "table"]
Ids = Literal["hash", "vocabulary", "index"]
Unknown = Literal["shared", "hash", "error"]
SplitBy = Literal["hash", "time", "order"]
Transform = Literal["log1p", "none"]
Negative = Literal["sign", "zero", "error"]
Missing = Literal["mean", "zero", "error"]
NotANumber = Literal["error", "missing"]


@dataclass(frozen=True)
class Category:
    """One table, and how cells become its rows.

    Attributes:
        name: of the table.
        columns: one, or those that are crossed: a pair of cells is then one id.
        ids: "hash": the text modulo `size`. "vocabulary": a row for each text that the training
            part has at least `floor` times. "index": the cell is the row, 0 to `size` - 1.
        size: rows of ids that are hashed, or of an index.
        floor: see above.
        unknown: what becomes of a text outside of the vocabulary, or of an index out of range: the
            row that all of them share, a hashed one of `size` more, or an error.
        separator: between several ids in one cell; None: a cell is one id.
    """

    name: str
    columns: tuple[str, ...]
    ids: Ids = "hash"
    size: int = 65536
    floor: int = 1
    unknown: Unknown = "shared"
    separator: str | None = None

    def __post_init__(self) -> None:
        where = f"category {self.name[:60]!r}"
        _check_names(where, self.columns)
        if not self.columns:
            raise InputError(f"{where}: has no column.")
        if len(self.columns) > 1 and (self.separator is not None or self.ids == "index"):
            raise InputError(
                f"{where}: columns that are crossed have one text in each cell; separator and"
                " ids: index do not go with them."
            )
        _check_choice(where, "ids", self.ids, Ids)
        _check_choice(where, "unknown", self.unknown, Unknown)
        for name, low in (("size", 1), ("floor", 1)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= MAX_ROWS:
                raise InputError(
                    f"{where}: {name} must be a whole number in [{low}, 2^31 - 1], got {value!r}."
                )
        if self.ids == "vocabulary" and self.unknown == "error" and self.floor > 1:
            raise InputError(
                f"{where}: with floor {self.floor} there are texts in the training part without a"
                " row of their own, which unknown: error refuses. Set floor: 1, or another rule."
            )
        if self.separator is not None and len(self.separator) != 1:
            raise InputError(
                f"{where}: separator must be one character, got {self.separator[:20]!r}."
            )

    def num_rows(self, num_words: int) -> int:
        """Rows of the table with a vocabulary of so many texts."""
        if self.ids == "hash":
            return self.size
        known = self.size if self.ids == "index" else num_words
        if self.unknown == "hash":
            # An index out of range falls on the rows that are there.
            total = known if self.ids == "index" else known + self.size
        else:
            # The shared row is there for texts that are rarer than `floor`, too.
            total = known + (self.ids == "vocabulary" or self.unknown == "shared")
        if total > MAX_ROWS:
            raise InputError(
                f"category {self.name!r}: its table would have {total} rows; at most 2^31 - 1 are"
                " possible. Raise floor, or use ids: hash with a size."
            )
        return total


@dataclass(frozen=True)
class Columns:
    """Roles of all columns, and the rules for numbers.

    Attributes:
        format: "criteo": tabs, no names, label, 13 numbers, 26 categories; "table": names on top.
        label: 1 for a click, 0 for none.
        numbers: columns of numbers.
        categories: one table each.
        time: a number or an ISO 8601 text that rows are ordered by; for a split by time.
        split_by: "hash" of the row, "time": the last rows are for validation and test, "order": the
            same by their place in the file.
        validation: part of the rows that the best state is chosen by.
        test: part of the rows that is only reported.
        transform: "log1p", or none.
        negative: numbers below 0: "sign" mirrors the transform, "zero" takes 0, or an error.
        missing: an empty cell is the "mean" of the training part, "zero", or an error.
        nan: NaN or infinity is an error, or counts as missing.
        bad_rows: largest part of rows that may be left out, such as those with missing columns.
    """

    format: Format
    label: str
    numbers: tuple[str, ...]
    categories: tuple[Category, ...]
    time: str | None = None
    split_by: SplitBy = "hash"
    validation: float = 0.1
    test: float = 0.1
    transform: Transform = "log1p"
    negative: Negative = "sign"
    missing: Missing = "mean"
    nan: NotANumber = "error"
    bad_rows: float = 0.001

    def __post_init__(self) -> None:
        for name, kind in (
            ("format", Format),
            ("split_by", SplitBy),
            ("transform", Transform),
            ("negative", Negative),
            ("missing", Missing),
            ("nan", NotANumber),
        ):
            _check_choice("columns", name, getattr(self, name), kind)
        _check_names("label", (self.label,))
        _check_names("numbers", self.numbers)
        for name in ("validation", "test", "bad_rows"):
            value = getattr(self, name)
            if not isinstance(value, float) or not 0 <= value < 1 or math.isnan(value):
                raise InputError(f"{name}: must be in [0, 1), got {value!r}.")
        if self.validation + self.test >= 1:
            raise InputError(
                f"split: validation {self.validation} and test {self.test} leave nothing to train"
                " on."
            )
        names = [category.name for category in self.categories]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"categories: {twice!r} is there twice.")
        if not self.numbers and not names:
            raise InputError("columns: name numbers or categories; there is nothing to learn from.")
        if (self.split_by == "time") != (self.time is not None):
            raise InputError("split: by time needs the name of a column, time; others need none.")
        if self.label in self.inputs:
            raise InputError(f"label: {self.label!r} is also an input, which would give it away.")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all columns that are read to score a row, each once."""
        crossed = [column for category in self.categories for column in category.columns]
        return tuple(dict.fromkeys([*self.numbers, *crossed]))

    def plain(self) -> dict[str, Any]:
        """As JSON data; `columns_of` is the way back."""
        return asdict(self)


def columns_of(plain: Any) -> Columns:
    """Columns from JSON data or from a recipe; InputError if they do not make sense."""
    try:
        given = dict(_known(Columns, plain))
        given["categories"] = tuple(
            Category(**{**_known(Category, each), "columns": tuple(each["columns"])})
            for each in given["categories"]
        )
        given["numbers"] = tuple(given["numbers"])
        return Columns(**given)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"columns: {error} is missing or not what belongs there.") from error


def _known(kind: type, plain: Mapping[str, Any]) -> Mapping[str, Any]:
    names = {field.name for field in fields(kind)}
    strangers = [key for key in plain if key not in names]
    if strangers:
        raise InputError(f"columns: {ascii(strangers[0])[:60]} is not known.")
    return plain


def _check_choice(where: str, name: str, value: Any, kind: Any) -> None:
    if value not in get_args(kind):
        raise InputError(
            f"{where}: {name} must be one of {', '.join(get_args(kind))}; got {value!r}."
        )


def _check_names(where: str, names: tuple[str, ...]) -> None:
    lengths = [len(name) if isinstance(name, str) else 0 for name in names]
    if len(names) > MAX_COLUMNS or not all(0 < length <= MAX_NAME for length in lengths):
        raise InputError(
            f"{where}: expected at most {MAX_COLUMNS} names of 1 to {MAX_NAME} characters."
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where}: the column {twice!r} is there twice.")
