# SPDX-License-Identifier: Apache-2.0
"""What pruning gained and cost: sparsity always beside bytes, time and quality."""

from dataclasses import asdict, dataclass, field
from typing import Any

from gossamer.nn.prunable import LeftDense

NOT_MEASURED = "not measured"
NEXT_STEP = (
    "Speed is unchanged until gossamer.compile(model); bytes on disk until gossamer.save(model)."
)


@dataclass(frozen=True)
class LayerRow:
    """One pruned weight.

    Attributes:
        name: dotted name of the layer.
        kind: "Linear" or "Conv2d".
        shape: shape of the weight.
        pattern: which zeros are legal.
        sparsity: fraction of zeros.
        nnz: kept weights.
        bytes_dense: bytes of the dense weight.
        bytes_sparse: bytes in `format`.
        format: the smallest format for this weight.
        note: what the reader should know; empty if nothing.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    pattern: str
    sparsity: float
    nnz: int
    bytes_dense: int
    bytes_sparse: int
    format: str
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The dense and the sparse model side by side; None means not measured.

    Attributes:
        sparsity: fraction of zeros over the pruned layers.
        global_sparsity: pruned weights as a fraction of all parameters.
        bytes_dense: parameters and saved buffers of the dense model.
        bytes_sparse: the same with pruned weights in their smallest format.
        ms_dense: time of the dense model.
        ms_sparse: time of the sparse model.
        quality_dense: what `evaluate` gave before.
        quality_sparse: what it gave after.
        layers: one row per pruned weight; tied weights once.
        left_dense: weights that no pruned layer holds, by reason, with their share.
        notes: what was left dense, and why; what else the reader should know.
        next_step: what to do now.
        doubt: why the times should not be believed: a busy machine; empty if they should.
    """

    sparsity: float
    global_sparsity: float
    bytes_dense: int
    bytes_sparse: int
    ms_dense: float | None = None
    ms_sparse: float | None = None
    quality_dense: float | None = None
    quality_sparse: float | None = None
    layers: list[LayerRow] = field(default_factory=list)
    left_dense: list[LeftDense] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    next_step: str = NEXT_STEP
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, ready for JSON."""
        result = asdict(self)
        for row in result["layers"]:
            row["shape"] = list(row["shape"])
        return result

    def __str__(self) -> str:
        parts = [
            _table(_layer_cells(self.layers)),
            _table(_total_cells(self)),
            "\n".join([f"{row.name}: {row.note}." for row in self.layers if row.note] + self.notes),
            f"{self.doubt}. Times taken meanwhile mean little." if self.doubt else "",
            self.next_step,
        ]
        return "\n\n".join(filter(None, parts))


def _layer_cells(layers: list[LayerRow]) -> list[list[str]]:
    head = ["layer", "kind", "shape", "pattern", "sparsity", "kept", "dense", "sparse", "format"]
    return [head] + [
        [
            row.name,
            row.kind,
            "x".join(map(str, row.shape)),
            row.pattern,
            f"{row.sparsity:.4f}",
            f"{row.nnz:,}",
            format_bytes(row.bytes_dense),
            format_bytes(row.bytes_sparse),
            row.format,
        ]
        for row in layers
    ]


def _total_cells(report: Report) -> list[list[str]]:
    return [
        ["whole model", "dense", "sparse", "dense / sparse"],
        ["sparsity of pruned layers", "0", f"{report.sparsity:.4f}", ""],
        ["sparsity of all parameters", "0", f"{report.global_sparsity:.4f}", ""],
        [
            "bytes",
            format_bytes(report.bytes_dense),
            format_bytes(report.bytes_sparse),
            _ratio(report.bytes_dense, report.bytes_sparse),
        ],
        [
            "time, ms",
            _number(report.ms_dense),
            _number(report.ms_sparse),
            _ratio(report.ms_dense, report.ms_sparse),
        ],
        ["quality", _number(report.quality_dense), _number(report.quality_sparse), ""],
    ]


def _table(cells: list[list[str]]) -> str:
    """Columns as wide as their widest cell, the first one flush left, the others flush right."""
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = []
    for name, *row in cells:
        rest = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([name.ljust(first), *rest]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def format_bytes(count: int) -> str:
    """A byte count for people: 512 B, 1.5 KiB, 86.4 MiB."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.4g}"


def _ratio(dense: float | None, sparse: float | None) -> str:
    return f"{dense / sparse:.2f}x" if dense is not None and sparse else ""
