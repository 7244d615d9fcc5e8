# SPDX-License-Identifier: Apache-2.0
"""Bytes beside the values and time to read, for every format that is legal for a pattern.

    python benchmarks/formats.py [--json] [--quick]

`bits` are those beside the values, of each weight, kept or not; `least` is what the number of legal
masks allows: log2 of it for each weight (for unstructured masks the binary entropy, for V:N:M the
choices of the paper's two levels). Reading is checked arrays to a mask in its bits, least of many.
"""

import time
from math import comb, log2

import torch
from rich.table import Table

from gossamer.formats import FORMATS, SparseMatrix, choose_format, decode, encode
from gossamer.patterns import NM, NMG, VNM, parse_pattern
from support.options import give, machine, parser, progress

CASES = (
    *(("unstructured", density) for density in (0.5, 0.1, 0.05)),
    *((text, None) for text in ("2:4", "1:4", "4:8", "4:16", "2:16", "16:32", "64:2:8", "64:2:16")),
    *((text, None) for text in ("nmg:2:4:16", "nmg:1:8:8")),
)


def least_bits(pattern, density):
    """log2 of the number of legal masks, of each weight."""
    if isinstance(pattern, NM):
        return log2(comb(pattern.group, pattern.num_kept)) / pattern.group
    if isinstance(pattern, NMG):
        return log2(pattern.num_row_patterns) / pattern.group
    if isinstance(pattern, VNM):
        shared = log2(comb(pattern.group, 4)) / (pattern.block_rows * pattern.group)
        return log2(6) / pattern.group + shared
    return -density * log2(density) - (1 - density) * log2(1 - density)


def measured(text, density, shape, repeats):
    """One row for each legal format."""
    pattern = parse_pattern(text)
    shape = pattern.padded_shape(shape)
    density = pattern.fixed_density or density
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    matrix = SparseMatrix.from_dense(scores, pattern.project(scores, density), pattern)
    chosen = choose_format(shape, matrix.nnz, 4, pattern)
    for name in FORMATS.names():
        if not FORMATS.get(name).supports(pattern):
            continue
        arrays = encode(matrix, name)[1]
        stored = sum(array.nbytes for array in arrays.values())
        took = []
        for _ in range(repeats):
            start = time.perf_counter()
            decode(name, arrays, shape, pattern)
            took.append(time.perf_counter() - start)
        row = {
            "pattern": text if pattern.fixed_density else f"{text}, {1 - density:.0%} zeros",
            "format": name,
            "bytes": stored,
            "formula": FORMATS.get(name).nbytes(shape, matrix.nnz, 4, pattern),
            "bits": (stored - matrix.values.nbytes) * 8 / scores.numel(),
            "least": least_bits(pattern, density),
            "chosen": name == chosen,
            "read_ms": min(took) * 1e3,
        }
        progress(str(row))
        yield row


def main():
    given = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(given.threads)
    shape, repeats = ((64, 480), 2) if given.quick else ((1024, 4096), 9)
    rows = [row for text, density in CASES for row in measured(text, density, shape, repeats)]
    columns = ("pattern", "format", "bytes", "formula", "bits", "least", "chosen", "read_ms")
    table = Table(title=f"about {shape[0]} x {shape[1]} float32, padded to the pattern's tile")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        numbers = [f"{row[key]:.3f}" for key in ("bits", "least")]
        marks = ["x" if row["chosen"] else "", f"{row['read_ms']:.2f}"]
        table.add_row(*(str(row[key]) for key in columns[:4]), *numbers, *marks)
    give(given, {"machine": machine(), "rows": rows}, table)


if __name__ == "__main__":
    main()
