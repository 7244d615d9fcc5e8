# SPDX-License-Identifier: Apache-2.0
"""Pages to render in tests."""

from gossamer.report import Comparison, Figure, LayerRow, Page, Report
from gossamer.report.charts import Curve
from gossamer.report.page import TextTable
from gossamer.running.layers import Row

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
