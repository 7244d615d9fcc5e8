# SPDX-License-Identifier: Apache-2.0
"""What a `train` stage says of a click log: roles of columns, and how cells become numbers."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gossamer.recipes.base import Found, Raw, Settings, as_list
from gossamer.training.distributed import AXES

_MAX_ROWS = 2**31 - 1
_CROSS = " x "
_Ids = Literal["hash", "vocabulary", "index"]
_Unknown = Literal["shared", "hash", "error"]


class CategorySettings(Settings):
    """A category whose rules differ from those of the others."""

    column: str
    """A name, or names that are crossed: a x b."""
    ids: _Ids | None = None
    size: int | None = Field(default=None, ge=1, le=_MAX_ROWS)
    floor: int | None = Field(default=None, ge=1, le=_MAX_ROWS)
    unknown: _Unknown | None = None
    separator: str | None = Field(default=None, min_length=1, max_length=1)
    """Between several ids in one cell."""


class SplitSettings(Settings):
    """Which rows are measured on, and not trained on."""

    by: Literal["hash", "time", "order"] = "hash"
    """hash of the row; time or order: the last rows."""
    validation: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Part that the best state is chosen by."""
    test: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Part that is reported at the end."""


_Category = Annotated[
    CategorySettings,
    BeforeValidator(lambda value: {"column": value} if isinstance(value, str) else value),
]


class ClicksSettings(Settings):
    """Roles of columns, and the rules by which cells become numbers and ids."""

    format: Literal["criteo", "table"] = "table"
    """criteo: tabs, no names: label, 13 numbers, 26 categories; table: names on top."""
    label: str = "label"
    """The column with 1 for a click, 0 for none."""
    numbers: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ()
    """Columns of numbers."""
    categories: Annotated[tuple[_Category, ...], BeforeValidator(as_list)] = ()
    """Columns of categories, one table each; a x b crosses two."""
    ids: _Ids = "hash"
    """vocabulary: a row for each text of the training part; index: the cell is the row."""
    size: int = Field(default=65536, ge=1, le=_MAX_ROWS)
    """Rows of a hashed table, or of an index."""
    floor: int = Field(default=1, ge=1, le=_MAX_ROWS)
    """vocabulary: how often a text must occur to get a row."""
    unknown: _Unknown = "shared"
    """Texts outside of the vocabulary: a shared row, a hashed one, an error."""
    time: str | None = None
    """The column that a split by time goes by."""
    split: SplitSettings = SplitSettings()
    transform: Literal["log1p", "none"] = "log1p"
    """Of numbers, before they are standardised."""
    negative: Literal["sign", "zero", "error"] = "sign"
    """Numbers below 0: mirrored, taken for 0, an error."""
    missing: Literal["mean", "zero", "error"] = "mean"
    """Empty cells of numbers."""
    nan: Literal["error", "missing"] = "error"
    """NaN and infinity."""
    bad_rows: float = Field(default=0.001, ge=0.0, lt=1.0)
    """Largest part of rows that may be left out as unreadable."""
    window: int = Field(default=262_144, ge=1, le=2**31 - 1)
    """Rows that are shuffled together."""

    def columns(self) -> dict[str, Any]:
        """The same as `gossamer.data.clicks.columns_of` takes it."""
        same = ("format", "label", "time", "transform", "negative", "missing", "nan", "bad_rows")
        numbers, categories = self.numbers, self.categories
        if self.format == "criteo":
            numbers = tuple(f"I{index}" for index in range(1, 14))
            categories = tuple(CategorySettings(column=f"C{index}") for index in range(1, 27))
        return {
            **{name: getattr(self, name) for name in same},
            "numbers": numbers,
            "categories": [self._category(each) for each in categories],
            "split_by": self.split.by,
            "validation": self.split.validation,
            "test": self.split.test,
        }

    def _category(self, given: CategorySettings) -> dict[str, Any]:
        rules = {
            name: getattr(self if getattr(given, name) is None else given, name)
            for name in ("ids", "size", "floor", "unknown")
        }
        names = given.column.split(_CROSS)
        return {"name": given.column, "columns": names, "separator": given.separator, **rules}


def clicks_faults(train: Raw) -> Found:
    """Settings of a click log that do not go together, or that are given to another task."""
    task, data = train.get("task"), train.get("data")
    clicks = data.get("clicks") if isinstance(data, Mapping) else None
    where = "data.clicks"
    if not isinstance(clicks, Mapping):
        if task == "clicks":
            yield where, "is missing; say what the columns are, such as clicks: {format: criteo}."
        return
    if task != "clicks":
        yield where, f"belongs to task clicks, not to {task}."
        return
    named = [name for name in ("numbers", "categories") if clicks.get(name)]
    is_criteo = clicks.get("format") == "criteo"
    if is_criteo and named:
        yield f"{where}.{named[0]}", "format criteo has its own columns; use format: table."
    if not is_criteo and not named:
        yield f"{where}.categories", "is missing; name categories, numbers, or both."
    split = clicks.get("split")
    by = split.get("by", "hash") if isinstance(split, Mapping) else "hash"
    if (by == "time") != (clicks.get("time") is not None):
        yield f"{where}.time", "goes with split: {by: time}, and only with it."
    yield from _mesh_faults(train)


def _mesh_faults(train: Mapping[str, Any]) -> Found:
    """What several processes cannot do with tables."""
    mesh = train.get("mesh")
    if not isinstance(mesh, Mapping):
        return
    for axis in AXES:
        if axis != "data" and mesh.get(axis, 1) != 1:
            yield f"mesh.{axis}", "task clicks is trained by replicas; use data alone."
    tables, evaluation = mesh.get("tables"), train.get("evaluation")
    if not isinstance(tables, Mapping) or tables.get("shard", "none") == "none":
        return
    where = "mesh.tables.shard"
    if train.get("quantize_tables") is not None:
        yield where, "tables in few bits are whole on every rank; use shard: none."
    if isinstance(evaluation, Mapping) and evaluation.get("keep") == "best":
        yield where, "no rank holds the whole best state; use shard: none, or leave keep out."
    optimizer = train.get("optimizer")
    if not isinstance(optimizer, Mapping) or optimizer.get("tables") is None:
        yield where, "goes with optimizer: {tables: {name: adagrad}}: gradients of touched rows."
