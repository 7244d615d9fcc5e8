# SPDX-License-Identifier: Apache-2.0
"""The arrays of each format, written out: files depend on these bytes."""

import pytest
import torch

from gossamer.formats import FORMATS, SparseMatrix, decode, encode
from gossamer.patterns import NM, NMG, VNM, Block, Unstructured

WEIGHT = torch.tensor(
    [
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0],
    ]
)


def mask_of(*rows):
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


def arrays_of(weight, mask, pattern, format):
    return encode(SparseMatrix.from_dense(weight, mask, pattern), format)[1]


def as_lists(arrays):
    return {name: array.tolist() for name, array in arrays.items()}


def test_bitmask():
    arrays = arrays_of(WEIGHT, mask_of("x..x....", ".......x"), Unstructured(), "bitmask")
    assert as_lists(arrays) == {"values": [1.0, 4.0, 16.0], "bitmask": [[0b1001], [0b10000000]]}
    assert arrays["bitmask"].dtype is torch.uint8


def test_csr():
    mask = mask_of("........", "x..x...x")
    arrays = arrays_of(WEIGHT, mask, Unstructured(), "csr")
    assert as_lists(arrays) == {
        "values": [9.0, 12.0, 16.0],
        "columns": [0, 3, 7],
        "row_pointers": [0, 0, 3],
    }
    assert arrays["columns"].dtype is torch.uint16
    assert arrays["row_pointers"].dtype is torch.int32


@pytest.mark.parametrize(
    ("num_columns", "dtype"), [(65535, torch.uint16), (65536, torch.uint16), (65537, torch.int32)]
)
def test_csr_columns_are_16_bit_while_they_fit(num_columns, dtype):
    weight = torch.zeros(2, num_columns)
    weight[0, -1] = weight[1, 40000] = 1.0
    arrays = arrays_of(weight, weight != 0, Unstructured(), "csr")
    assert arrays["columns"].dtype is dtype
    assert arrays["columns"].tolist() == [num_columns - 1, 40000]
    assert torch.equal(decode("csr", arrays, weight.shape, Unstructured()).dense(), weight)
    stored = sum(array.nbytes for array in arrays.values())
    assert stored == FORMATS.get("csr").nbytes((2, num_columns), 2, 4, Unstructured())


def test_nm_packs_the_low_nibble_first():
    arrays = arrays_of(WEIGHT, mask_of(".x.xx.x.", "xx....xx"), NM(2, 4), "nm")
    assert as_lists(arrays) == {
        "values": [[[2.0, 4.0], [5.0, 7.0]], [[9.0, 10.0], [15.0, 16.0]]],
        "positions": [[0x31, 0x20], [0x10, 0x32]],
    }


def test_nm_beyond_16_takes_a_byte_per_position():
    mask = torch.zeros(1, 32, dtype=torch.bool)
    mask[0, [5, 31]] = True
    arrays = arrays_of(torch.arange(32.0).view(1, 32), mask, NM(2, 32), "nm")
    assert as_lists(arrays) == {"values": [[[5.0, 31.0]]], "positions": [[5, 31]]}


def test_vnm_fills_unused_columns_with_the_lowest():
    arrays = arrays_of(WEIGHT, mask_of("..x.x...", "..x.x..."), VNM(2, 8), "vnm")
    assert as_lists(arrays) == {
        "values": [[[3.0, 5.0]], [[11.0, 13.0]]],
        "positions": [[0b1110], [0b1110]],
        "columns": [[[0, 1, 2, 4]]],
    }


def test_vnm_last_block_may_be_short():
    weight = torch.arange(24.0).view(3, 8)
    mask = mask_of("xx......", "..xx....", "......xx")
    arrays = arrays_of(weight, mask, VNM(2, 8), "vnm")
    assert arrays["columns"].tolist() == [[[0, 1, 2, 3]], [[0, 1, 6, 7]]]
    assert torch.equal(decode("vnm", arrays, weight.shape, VNM(2, 8)).dense(), weight * mask)


def test_nmg_groups_columns_by_row_pattern():
    arrays = arrays_of(WEIGHT, mask_of("x.x...xx", ".x.xxx.."), NMG(1, 2, 4), "nmg")
    assert as_lists(arrays) == {
        "values": [[[[[1.0], [3.0], [7.0], [8.0]], [[10.0], [12.0], [13.0], [14.0]]]]],
        "columns": [[[[0, 2, 6, 7], [1, 3, 4, 5]]]],
    }
    assert arrays["columns"].dtype is torch.int16


def test_block_is_csr_on_the_grid():
    arrays = arrays_of(WEIGHT, mask_of("..xx....", "..xx...."), Block(2, 2), "block")
    assert as_lists(arrays) == {
        "values": [[[3.0, 4.0], [11.0, 12.0]]],
        "block_columns": [1],
        "block_row_pointers": [0, 1],
    }
    assert arrays["block_columns"].dtype is torch.int32


def test_bitmask_stores_no_bits_where_everything_is_kept():
    arrays = arrays_of(WEIGHT, mask_of("xxxxxxxx", "xxxxxxxx"), Unstructured(), "bitmask")
    assert list(arrays) == ["values"]
    matrix = decode("bitmask", arrays, WEIGHT.shape, Unstructured())
    assert matrix.positions.mask_bits is None
    assert torch.equal(matrix.dense(), WEIGHT)
