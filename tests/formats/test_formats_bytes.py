# SPDX-License-Identifier: Apache-2.0
"""Bytes of every format, exactly, next to the formulas that docs/reference/files.md prints."""

from math import ceil, comb, log2

import pytest
import torch

from gossamer.formats import FORMATS, SparseMatrix, choose_format, encode
from gossamer.patterns import parse_pattern


def least_bits(count):
    """ceil(log2 count), by counting."""
    bits = 0
    while 2**bits < count:
        bits += 1
    return bits


def bitmask(rows, columns, nnz, size):
    return nnz * size + (0 if nnz == rows * columns else rows * ceil(columns / 8))


def csr(rows, columns, nnz, size):
    return nnz * (size + (2 if columns <= 65536 else 4)) + 4 * (rows + 1)


def nm(rows, columns, size, n, m):
    groups = rows * columns // m
    return groups * n * size + ceil(groups * least_bits(comb(m, n)) / 8)


def vnm(rows, columns, size, v, m):
    groups, blocks = columns // m, ceil(rows / v)
    return rows * (groups * 2 * size + ceil(groups * 4 / 8)) + ceil(
        blocks * groups * 4 * least_bits(m) / 8
    )


def nmg(rows, columns, size, n, m):
    groups = rows * columns // m
    return groups * n * size + ceil(groups * least_bits(comb(m, n)) / 8)


def block(rows, nnz, size, height, width):
    num_blocks = nnz // (height * width)
    return nnz * size + 4 * num_blocks + 4 * (rows // height + 1)


NM_TEXTS = [(1, 1), (1, 2), (2, 4), (1, 4), (4, 8), (3, 7), (2, 16), (4, 16), (8, 32), (16, 32)]
CASES = [
    *(("bitmask", "unstructured", bitmask, ()), ("csr", "unstructured", csr, ())),
    *(("nm", f"{n}:{m}", nm, (n, m)) for n, m in NM_TEXTS),
    *(
        ("vnm", f"{v}:2:{m}", vnm, (v, m))
        for v, m in [(1, 4), (64, 8), (3, 10), (16, 16), (2, 100), (5, 256)]
    ),
    *(
        ("nmg", f"nmg:{n}:{m}:{g}", nmg, (n, m))
        for n, m, g in [(1, 1, 1), (2, 4, 1), (2, 4, 16), (1, 3, 5), (3, 8, 1), (1, 16, 4)]
    ),
    *(("block", f"block:{r}x{c}", block, (r, c)) for r, c in [(1, 1), (4, 4), (3, 2)]),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("name", "text", "formula", "numbers"), CASES)
@pytest.mark.parametrize("size", [(0, 0), (1, 1), (7, 5), (64, 260)])
def test_bytes_are_those_of_the_formula(name, text, formula, numbers, size, dtype):
    pattern = parse_pattern(text)
    rows, columns = shape = pattern.padded_shape(size)
    scores = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    for density in (pattern.fixed_density,) if pattern.fixed_density else (0.1, 0.5, 1.0):
        mask = pattern.project(scores, density)
        matrix = SparseMatrix.from_dense(scores, mask, pattern)
        nnz = matrix.nnz
        matrix = SparseMatrix(matrix.positions, torch.zeros(nnz, dtype=dtype))
        arguments = {
            "rows": rows,
            "columns": columns,
            "nnz": nnz,
            "size": dtype.itemsize,
        }
        wanted = formula.__code__.co_varnames[: formula.__code__.co_argcount]
        given = [arguments[key] for key in wanted if key in arguments]
        expected = formula(*given, *numbers)
        stored = sum(array.nbytes for array in encode(matrix, name)[1].values())
        assert stored == expected
        assert FORMATS.get(name).nbytes(shape, nnz, dtype.itemsize, pattern) == expected


def test_2_4_takes_3_bits_a_group_beside_the_4_of_a_bitmask():
    rows, columns, pattern = 128, 256, parse_pattern("2:4")
    scores = torch.rand(rows, columns)
    matrix = SparseMatrix.from_dense(scores, pattern.project(scores, 0.5), pattern)
    groups, values = rows * columns // 4, rows * columns // 2 * 4
    beside = {
        name: sum(array.nbytes for array in encode(matrix, name)[1].values()) - values
        for name in ("nm", "bitmask")
    }
    assert beside == {"nm": groups * 3 // 8, "bitmask": groups * 4 // 8}
    assert choose_format((rows, columns), matrix.nnz, 4, pattern) == "nm"


@pytest.mark.parametrize(("n", "m"), NM_TEXTS)
def test_no_format_of_n_m_is_more_than_a_bit_a_group_above_the_logarithm(n, m):
    pattern, groups = parse_pattern(f"{n}:{m}"), 1000
    beside = FORMATS.get("nm").nbytes((10, 100 * m), groups * n, 4, pattern) - groups * n * 4
    least = groups * log2(comb(m, n)) / 8
    assert least <= beside < least + groups / 8 + 1
