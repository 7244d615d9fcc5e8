# SPDX-License-Identifier: Apache-2.0
"""Pages to render in tests."""

from pathlib import Path

from gossamer.report import Comparison, Figure, LayerRow, Page, Report
from gossamer.report.charts import Curve
from gossamer.report.page import TextTable
from gossamer.running.layers import Row
from gossamer.search import Point, SearchLimits, ShrinkResult
from gossamer.search.front import best

HOSTILE = "<script>alert('x')</script>\"&{{7*7}}{% raw %}<img src=http://evil.example/x>"


def row(name, tokens=128, kernel="panel", dense_us=100.0, sparse_us=25.0):
    return Row(
        name=name,
        kind="PackedLinear",
        shape=(64, 32),
        density=0.1,
        pattern="unstructured",
        format="bitmask",
        tokens=tokens,
        kernel=kernel,
        dense_us=dense_us,
        sparse_us=sparse_us,
        why="4.00x dense",
    )


def comparison():
    return Comparison(
        ("dense", "pruned", "dense int8"),
        (
            Figure("accuracy", "score", (0.99, 0.97, None)),
            Figure("bytes on disk", "bytes", (4096, 1024, 2048)),
            Figure("ms, batch 1", "ms", (1.0, 2.0, None)),
            Figure("ms, batch 128", "ms", (20.0, 4.0, 10.0)),
        ),
    )


def page(text="plain", layers=None):
    rows = [
        row(text, 1, "dense"),
        row(text, 128),
        row(f"{text}.2", 128),
        row("head", None, "-", None, None),
    ]
    return Page(
        title=f"title {text}",
        lead=f"lead {text}",
        comparison=comparison(),
        layers=rows if layers is None else layers,
        machine={"cpu": f"cpu {text}", "threads": "1"},
        steps=((f"step {text}", f"outcome {text}"), ("last step", "")),
        curves=(Curve(f"curve {text}", ((0.0, 2.0), (1.0, 1.0), (2.0, 0.5)), ((1.0, text),)),),
        tables=(TextTable(f"table {text}", ("", text), (("name", text),), f"note {text}"),),
        notes=(f"note one {text}", "note two"),
    )


def report(text="plain"):
    layer = LayerRow(
        text, "Linear", (64, 32), "unstructured", 0.9, 205, 8192, 1076, "bitmask", text
    )
    return Report(0.9, 0.8, 8192, 1076, ms_dense=2.0, ms_sparse=1.0, layers=[layer], notes=[text])


def searched(count, max_ms=None):
    """A search that found `count` models, crowded as they come: dense, pruned, of others."""
    in_torch = 27.5
    points = []
    for k in range(count):
        ms = 22.0 if k == 0 else 3.0 + 8.0 * ((k * 7) % 11) / 11
        lost = 0.0 if k == 0 else 0.001 * k**1.5
        name = "dense" if k == 0 else "dense-int8" if k == 1 else f"recovered-{k}-200-r0.0001"
        precision = "int8" if k else "fp32"
        size = int(90e6 / (1 + k))
        points.append(
            Point(
                "OpenVINO" if k == 5 else name, precision, 88 - lost, lost, ms, in_torch / ms, size,
                is_ours=k != 5,
            )
        )  # fmt: skip
    limits = SearchLimits(0.02, max_ms)
    chosen = best([point for point in points if point.is_ours], limits) or points[0]
    result = ShrinkResult(
        chosen, True, Path("small"), Path("small.work"), "score", 88.0, 87.5, tuple(points), (),
        (), 600.0, False, "8 x 128 tokens", (), 1200.0, 600.0,
    )  # fmt: skip
    return result, limits
