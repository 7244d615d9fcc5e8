# SPDX-License-Identifier: Apache-2.0
"""The profile of `gossamer explain`: every layer inside a whole forward, as a table and as bars."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.cli.shell import table
from gossamer.report import Comparison, Figure, Page, write_html
from gossamer.report.charts import layer_bars
from gossamer.running.layers import LayerTimes, Row

if TYPE_CHECKING:
    from rich.table import Table


def profile_table(times: LayerTimes) -> "Table":
    """Layers, their sum, what lies between them, and the whole forward."""
    dense, sparse = times.dense_sum_ms, times.sparse_sum_ms
    between = max(times.dense_ms - dense, 0.0), max(times.sparse_ms - sparse, 0.0)
    rows = [
        *((layer.name, layer.dense_ms, layer.sparse_ms) for layer in times.layers),
        ("all layers", dense, sparse),
        ("between them", *between),
        ("whole forward", times.dense_ms, times.sparse_ms),
    ]
    return table(
        *("layer", ">dense ms", ">sparse ms", ">speed-up"),
        rows=((name, *_cells(dense, sparse)) for name, dense, sparse in rows),
    )


def write_profile(
    name: str,
    times: LayerTimes,
    rows: list[Row],
    machine: Mapping[str, str],
    text: str,
    path: Path,
) -> None:
    """The page."""
    write_html(
        Page(
            title=f"{name}: where the time goes",
            lead=f"One forward of {text}: the best time of every layer inside it.",
            comparison=Comparison(
                ("dense", "sparse"),
                (Figure("whole forward, ms", "ms", (times.dense_ms, times.sparse_ms)),),
            ),
            layers=rows,
            machine=machine,
            charts=(layer_bars(times),),
        ),
        path,
    )


def _cells(dense: float | None, sparse: float | None) -> list[str]:
    texts = ["-" if ms is None else f"{ms:.3f}" for ms in (dense, sparse)]
    return [*texts, f"{dense / sparse:.2f}x" if dense and sparse else "-"]
