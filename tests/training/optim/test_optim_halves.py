# SPDX-License-Identifier: Apache-2.0
"""A float32 in two halves: exact for every number, rounded as said, also where it hurts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.training.optim import halves

EDGES = {
    "zero": 0x00000000,
    "minus zero": 0x80000000,
    "smallest subnormal": 0x00000001,
    "subnormal tie": 0x00008000,
    "minus subnormal tie": 0x80008000,
    "largest subnormal": 0x007FFFFF,
    "smallest normal": 0x00800000,
    "one": 0x3F800000,
    "tie above one, even": 0x3F808000,
    "tie above one, odd": 0x3F818000,
    "just below a tie": 0x3F807FFF,
    "minus tie": 0xBF808000,
    "largest": 0x7F7FFFFF,
    "minus largest": 0xFF7FFFFF,
    "infinity": 0x7F800000,
    "minus infinity": 0xFF800000,
}


def floats(bits):
    return torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())


def bits_of(tensor):
    return tensor.view(torch.int32)


@pytest.mark.parametrize("bits", EDGES.values(), ids=EDGES)
def test_edges_round_trip(bits):
    master = floats([bits])
    weight, low = halves.split(master)
    assert weight.dtype is torch.bfloat16
    assert low.dtype is torch.int16
    assert torch.equal(bits_of(halves.join(weight, low)), bits_of(master))


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
@settings(max_examples=200, deadline=None)
def test_every_number_that_is_not_nan_round_trips(bits):
    master = floats(bits)
    master = master[~master.isnan()]
    assert torch.equal(bits_of(halves.join(*halves.split(master))), bits_of(master))


def test_a_million_numbers_differ_from_torchs_rounding_on_ties_only():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (1 << 20,), generator=generator)
    bits = torch.cat([bits, torch.arange(0x3F808000, 0x3F908000, 0x8000)]).to(torch.int32)
    master = bits.view(torch.float32)
    master = master[master.isfinite()]
    ours, torchs = halves.split(master)[0], master.to(torch.bfloat16)
    differs = ours.view(torch.int16) != torchs.view(torch.int16)
    ties = (bits_of(master) & 0xFFFF) == 0x8000
    assert int(differs.sum()) > 0
    assert not bool((differs & ~ties).any())
    # Half of the ties are rounded to the neighbour that is even as well.
    assert int(differs.sum()) < int(ties.sum())


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFC12345])
def test_nan_stays_nan(bits):
    weight, low = halves.split(floats([bits]))
    assert weight.isnan().all()
    assert halves.join(weight, low).isnan().all()


@given(st.floats(-(2.0**126), 2.0**126, width=32), st.floats(0, 1, exclude_max=True))
@settings(max_examples=200, deadline=None)
def test_24_bits_are_within_one_step(number, dither):
    master = torch.tensor([number])
    again = halves.join(*halves.split_24(master, dither))
    assert abs(int(bits_of(again)) - int(bits_of(master))) <= 256
    # What has 24 bits already stays as it is.
    assert torch.equal(halves.join(*halves.split_24(again, dither)), again)


@pytest.mark.parametrize("dither", [0.0, 0.5, 1 - 2**-22])
@pytest.mark.parametrize("bits", [0x7F7F0000, 0xFF7F0000, 0x7F800000, 0xFF800000, 0, 0x80000000])
def test_24_bits_at_the_ends(bits, dither):
    """What has 24 bits stays, the largest bfloat16, infinities and zeros included."""
    master = floats([bits])
    again = halves.join(*halves.split_24(master, dither))
    assert torch.equal(bits_of(again), bits_of(master))


def test_24_bits_drift_as_the_sum_does():
    """Updates below the last bit are not lost: a thousand of them add up."""
    from gossamer.training.optim.pieces import offsets

    master = torch.ones(64)
    weight, low = halves.split_24(master, 0.5)
    for step in range(1000):
        moved = halves.join(weight, low) + 1e-6  # a thirtieth of the last of 24 bits
        weight, low = halves.split_24(moved, offsets(0, 64, step, torch.device("cpu")))
    torch.testing.assert_close(
        halves.join(weight, low), master + 1e-3, rtol=0, atol=1.3e-4
    )  # four last bits
