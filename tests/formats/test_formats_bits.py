# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import FormatError
from gossamer.formats.bits import (
    check_bits,
    check_spare_bits,
    count_bits,
    pack_bits,
    pack_fields,
    row_bytes,
    unpack_bits,
    unpack_fields,
)


@pytest.mark.parametrize("shape", [(0, 0), (0, 9), (3, 0), (1, 1), (2, 7), (2, 8), (2, 9), (5, 33)])
def test_packed_masks_equal_numpy_and_come_back(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.5
    bits = pack_bits(mask)
    assert np.array_equal(bits.numpy(), np.packbits(mask.numpy(), axis=1, bitorder="little"))
    assert torch.equal(unpack_bits(bits, shape[1]), mask)
    assert count_bits(bits) == int(mask.sum())
    check_bits(bits, shape, "w")


def test_strided_bits_unpack_too():
    mask = torch.rand(8, 24, generator=torch.Generator().manual_seed(1)) > 0.5
    bits = pack_bits(mask)
    assert torch.equal(unpack_bits(bits.T.contiguous().T, 24), mask)
    assert torch.equal(unpack_bits(bits[::2], 24), mask[::2])


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (torch.zeros(2, 2, dtype=torch.int8), "must be uint8"),
        (torch.zeros(2, 1, dtype=torch.uint8), "must be uint8"),
        (torch.zeros(4, dtype=torch.uint8), "must be uint8"),
        (torch.full((2, 2), 255, dtype=torch.uint8), "padding bits beyond column 9"),
    ],
)
def test_bad_masks_are_refused(bits, message):
    with pytest.raises(FormatError, match=message):
        check_bits(bits, (2, 9), "w")


@settings(deadline=None, max_examples=40)
@given(
    field_bits=st.sampled_from([2, 4, 8]),
    num_rows=st.integers(0, 4),
    num_fields=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_small_numbers_come_back(field_bits, num_rows, num_fields, seed):
    generator = torch.Generator().manual_seed(seed)
    fields = torch.randint(0, 1 << field_bits, (num_rows, num_fields), generator=generator)
    packed = pack_fields(fields, field_bits)
    assert packed.shape == (num_rows, row_bytes(num_fields, field_bits))
    assert torch.equal(unpack_fields(packed, num_fields, field_bits).long(), fields)
    check_spare_bits(packed, num_fields, field_bits, "w")


def test_low_bits_come_first():
    assert pack_fields(torch.tensor([[1, 2, 3]]), 4).tolist() == [[0x21, 0x03]]
    assert pack_fields(torch.tensor([[1, 2, 3, 0, 1]]), 2).tolist() == [[0b00111001, 0b01]]
    with pytest.raises(FormatError, match="padding bits"):
        check_spare_bits(torch.tensor([[0x21, 0x13]], dtype=torch.uint8), 3, 4, "w")
