# SPDX-License-Identifier: Apache-2.0
"""`quantize_tables:` of a `train` stage: embedding tables that are trained in few bits."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from gossamer.recipes.base import MAX_STEPS, Found, Raw, Settings


class QuantizedTables(Settings):
    """Rows are rounded when they are looked up; float32 rows follow the gradients."""

    bits: Literal[32, 8, 4, 2] = 4
    """Of a number of a row; 32: float32, by the same kernels and optimizers."""
    granularity: Literal["table", "row"] = "table"
    """What shares a scale."""
    period: int = Field(default=200, ge=1, le=MAX_STEPS)
    """table: steps from one exact scale to the next."""
    half_scale: bool = False
    """Scales are fp16 numbers, for an exact export to torch's 4-bit bags."""
    shadow: bool = True
    """false: codes are trained in place, by stochastic rounding, without float32 rows."""


def quantized_faults(train: Raw) -> Found:
    """Settings of tables in few bits that do not go together."""
    if not isinstance(train.get("quantize_tables"), Mapping):
        return
    task, optimizer = train.get("task"), train.get("optimizer")
    if task != "clicks":
        yield "quantize_tables", f"belongs to task clicks, not to {task}."
    elif not isinstance(optimizer, Mapping) or optimizer.get("tables") is None:
        yield (
            "quantize_tables",
            "gradients of these tables hold touched rows; give them an optimizer of rows:"
            " optimizer: {tables: {name: adagrad}}.",
        )
    elif train["quantize_tables"].get("shadow") is False:
        yield from _shadow_faults(train, optimizer["tables"])


def _shadow_faults(train: Raw, by_rows: object) -> Found:
    """What codes that are trained in place do not go with."""
    tables, mesh = train["quantize_tables"], train.get("mesh")
    has_scales_of_rows = tables.get("granularity", "table") == "row"
    if tables.get("bits", 4) not in (8, 4) or not has_scales_of_rows or tables.get("half_scale"):
        yield (
            "quantize_tables.shadow",
            "codes of 8 or 4 bits with float32 scales of rows are trained in place: bits: 8 or 4,"
            " granularity: row, without half_scale.",
        )
    if isinstance(by_rows, Mapping) and by_rows.get("name") == "adam":
        yield "quantize_tables.shadow", "adam needs float32 rows; use adagrad or sgd."
    if isinstance(mesh, Mapping):
        yield "quantize_tables.shadow", "codes are trained by one process; leave mesh out."
