# SPDX-License-Identifier: Apache-2.0
"""The arrays of each format, written out: files depend on these bytes."""

import math
from itertools import combinations

import pytest
import torch

from gossamer.formats import FORMATS, SparseMatrix, decode, encode
from gossamer.formats.choices import choice_bits, pack_choices, unpack_choices, unpack_numbers
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


def test_nm_numbers_the_six_choices_of_2_4_in_3_bits():
    arrays = arrays_of(WEIGHT, mask_of(".x.xx.x.", "xx....xx"), NM(2, 4), "nm")
    assert as_lists(arrays) == {
        "values": [[[2.0, 4.0], [5.0, 7.0]], [[9.0, 10.0], [15.0, 16.0]]],
        "choices": [0b000_001_100 | (5 << 9) & 0xFF, (5 << 9) >> 8],
    }


def test_choices_are_numbered_as_the_combinatorial_number_system_does():
    """All of them in their order, next to Python's own enumeration."""
    for num_kept, group in [(1, 1), (4, 4), (1, 16), (2, 4), (3, 7), (2, 16), (31, 32), (16, 17)]:
        every = sorted(combinations(range(group), num_kept), key=lambda places: places[::-1])
        packed = pack_choices(torch.tensor(every), group)
        bits = choice_bits(num_kept, group)
        assert packed.numel() == -(-len(every) * bits // 8)
        assert bits == math.ceil(math.log2(len(every)))
        numbers = unpack_numbers(packed, len(every), bits, "w")
        assert numbers.tolist() == list(range(len(every)))
        assert unpack_choices(packed, len(every), num_kept, group, "w").tolist() == [
            list(places) for places in every
        ]


def test_the_choices_of_16_of_32_take_30_bits():
    last = torch.arange(16, 32).view(1, 16)
    packed = pack_choices(last, 32)
    assert packed.numel() == 4
    assert unpack_numbers(packed, 1, 30, "w").tolist() == [math.comb(32, 16) - 1]
    assert torch.equal(unpack_choices(packed, 1, 16, 32, "w"), last)


def test_vnm_fills_unused_columns_with_the_lowest():
    arrays = arrays_of(WEIGHT, mask_of("..x.x...", "..x.x..."), VNM(2, 8), "vnm")
    assert as_lists(arrays) == {
        "values": [[[3.0, 5.0]], [[11.0, 13.0]]],
        "positions": [[0b1110], [0b1110]],
        "shared": [0 | 1 << 3 | (2 << 6) & 0xFF, 2 >> 2 | 4 << 1],
    }


def test_vnm_last_block_may_be_short():
    weight = torch.arange(24.0).view(3, 8)
    mask = mask_of("xx......", "..xx....", "......xx")
    arrays = arrays_of(weight, mask, VNM(2, 8), "vnm")
    assert unpack_numbers(arrays["shared"], 8, 3, "w").tolist() == [0, 1, 2, 3, 0, 1, 6, 7]
    assert torch.equal(decode("vnm", arrays, weight.shape, VNM(2, 8)).dense(), weight * mask)


def test_nmg_groups_columns_by_row_pattern():
    arrays = arrays_of(WEIGHT, mask_of("x.x...xx", ".x.xxx.."), NMG(1, 2, 4), "nmg")
    assert as_lists(arrays) == {
        "values": [[[[[1.0], [3.0], [7.0], [8.0]], [[10.0], [12.0], [13.0], [14.0]]]]],
        "choices": [0b00111010],
    }


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
