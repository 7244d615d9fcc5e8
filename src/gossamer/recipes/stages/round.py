# SPDX-License-Identifier: Apache-2.0
"""What a `round` stage says: weights are rounded to few bits."""

from typing import Literal

from pydantic import Field

from gossamer.recipes.base import Found, Ignored, Raw, Settings, StageSettings

_Rounding = Literal["int8", "int4", "int4_offset", "bf16"]


class RoundedTables(Settings):
    """Embedding tables as codes of few bits, or with fewer rows."""

    bits: Literal[32, 8, 4, 2] | None = 4
    """Of a number of a row; 32: float32; null: those that the tables were trained in."""
    granularity: Literal["table", "row"] = "row"
    """What shares a scale."""
    form: Literal["packed", "trained"] = "packed"
    """packed: codes; trained: float32 rows that later stages train, rounded when looked up."""
    min_count: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Ids that the data have less often share one row; null: every id has its own."""
    shared: Literal["mean", "zero"] = "mean"
    """What they share."""


class Round(StageSettings):
    """Weights on the integer grids of kernels and files, or in bf16."""

    layers: _Rounding | None = "int8"
    """Of Linear and Conv2d, pruned or not; null: left alone."""
    embeddings: _Rounding | None = None
    """Of Embedding and EmbeddingBag; null: left alone."""
    tables: RoundedTables | None = None
    """The same layers as packed tables, instead of embeddings."""
    ignore: Ignored = None

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """There must be something to round, and embeddings are rounded once."""
        embeddings, tables = raw.get("embeddings"), raw.get("tables")
        if raw.get("layers", "int8") is None and embeddings is None and tables is None:
            yield "layers", "neither layers nor embeddings are given, so there is nothing to round."
        if embeddings is not None and tables is not None:
            yield "tables", "embeddings are given, too; say one of the two."

    @property
    def needs_data(self) -> bool:
        """It looks at weights, unless it counts ids."""
        return self.tables is not None and self.tables.min_count is not None
