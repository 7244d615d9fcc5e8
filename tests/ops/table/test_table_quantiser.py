# SPDX-License-Identifier: Apache-2.0
"""Codes and scales: counts of bytes, the way back, and what is refused."""

import pytest
import torch
from table_cases import floats

from gossamer.errors import FormatError, InputError
from gossamer.ops.kernels import available_kernels
from gossamer.ops.table import PackedRows, Rounding, Rows, encode_rows
from gossamer.ops.table.quantiser import BITS, pack_codes, raised_to_half, unpack_codes


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 16, 63])
@pytest.mark.parametrize("bits", BITS)
def test_codes_come_back(bits, width):
    rounding = Rounding(bits)
    whole = torch.randint(rounding.lowest, rounding.highest + 1, (7, width), dtype=torch.int8)
    codes = pack_codes(whole, bits)
    assert codes.shape == (7, rounding.row_bytes(width))
    assert torch.equal(unpack_codes(codes, bits, width), whole)


def test_the_low_nibble_is_first():
    assert pack_codes(torch.tensor([[-8, 7, 0]]), 4).tolist() == [[0xF0, 0x08]]
    assert pack_codes(torch.tensor([[-2, -1, 0, 1, 1]]), 2).tolist() == [[0b11100100, 0b11]]


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("granularity", ["table", "row"])
@pytest.mark.parametrize("bits", BITS)
def test_native_codes_are_those_of_torch(monkeypatch, kernels, bits, granularity, half):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    rounding = Rounding(bits, granularity, half)
    for width, spread in ((1, 1.0), (17, 1e-5), (64, 30.0), (5, 0.0)):
        weight = floats(bits, 33, width, spread)
        codes, scales = encode_rows(weight, rounding)
        assert torch.equal(scales, rounding.scales(weight))
        assert torch.equal(codes, pack_codes(rounding.whole(weight, scales), bits))


def test_int4_is_exactly_eight_times_smaller_and_one_scale():
    codes, scales = encode_rows(floats(0, 100, 16), Rounding(4))
    assert 8 * codes.nbytes == 100 * 16 * 4
    assert scales.nbytes == 4


def test_half_scales_are_the_next_fp16_number():
    tiny = torch.tensor([1e-8, 6e-8, 1e-6, 6.1e-5, 0.1, 1.0, 1.0001, 60000.0, 65504.0])
    raised = raised_to_half(tiny)
    assert torch.equal(raised.half().float(), raised)
    assert (raised >= tiny).all()
    below = torch.nextafter(raised.half(), torch.tensor(0.0, dtype=torch.float16)).float()
    assert (below < tiny).all()
    with pytest.raises(InputError, match="beyond fp16"):
        encode_rows(torch.full((2, 2), 1e7), Rounding(4, half=True))


@pytest.mark.parametrize(
    ("given", "text"),
    [({"bits": 3}, "bits must be"), ({"bits": 4, "granularity": "column"}, "granularity must be")],
)
def test_unknown_settings_are_refused(given, text):
    with pytest.raises(InputError, match=text):
        Rounding(**given)


def test_arrays_that_contradict_each_other_are_refused():
    rounding = Rounding(4)
    codes, scales = encode_rows(floats(0, 6, 5), rounding)
    row_map = torch.arange(6, dtype=torch.int32)
    PackedRows(Rows(codes, 5, rounding, scales, row_map))
    wrong = (
        (Rows(codes[:, :2], 5, rounding, scales), "codes must be"),
        (Rows(codes, 5, rounding, scales.double()), "scales must be"),
        (Rows(codes, 5, rounding, torch.tensor([float("nan")])), "positive and finite"),
        (Rows(codes, 5, rounding, -scales), "positive and finite"),
        (Rows(codes | 0xF0, 5, rounding, scales), "behind the last code"),
        (Rows(codes, 5, rounding, scales, row_map + 1), "a row that is not there"),
        (Rows(codes, 5, rounding, scales, row_map - 1), "a row that is not there"),
        (Rows(codes, 5, rounding, scales, row_map.long()), "row_map must be"),
        (Rows(codes, 5), "need a rounding"),
    )
    for rows, text in wrong:
        with pytest.raises(FormatError, match=text):
            PackedRows(rows)
