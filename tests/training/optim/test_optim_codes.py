# SPDX-License-Identifier: Apache-2.0
"""8-bit moments: how far a code may be off, and that running averages follow."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.training.optim import codes
from gossamer.training.optim.pieces import offsets

STEP = 2 ** (1 / 8)
CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_sizes_and_bounded_error(count, dtype):
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, generator=generator)
    values = values if dtype is torch.int8 else values.square()
    coded, exponents = codes.encode(values, dtype)
    assert coded.dtype is dtype
    assert exponents.shape == (codes.num_blocks(count),)
    again = codes.decode(coded, exponents)
    inside = values.abs() > values.abs().max() * 2.0**-14 if count else values > 0
    ratio = again[inside] / values[inside]
    assert bool((ratio <= STEP**0.51).all())
    assert bool((ratio >= STEP**-0.51).all())


@given(
    st.lists(
        st.sampled_from(
            [
                0.0,
                *(
                    s * m * 2.0**e
                    for s in (1, -1)
                    for m in (1, 1.1, 1.7)
                    for e in (-60, -9, 0, 1, 90)
                ),
            ]
        ),
        min_size=1,
        max_size=300,
    ),
    st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=150, deadline=None)
def test_decoding_and_encoding_again_changes_nothing(numbers, offset):
    for dtype in (torch.int8, torch.uint8):
        values = torch.tensor(numbers)
        values = values if dtype is torch.int8 else values.abs()
        coded, exponents = codes.encode(values, dtype, offset)
        again, exponents_again = codes.encode(codes.decode(coded, exponents), dtype, offset)
        decoded = codes.decode(coded, exponents)
        assert torch.equal(codes.decode(again, exponents_again), decoded)
        assert torch.equal(decoded.sign()[again != 0], values.sign()[again != 0])


def test_second_moments_never_become_zero_and_zero_stays_zero():
    values = torch.tensor([1.0, 1e-30, 0.0])
    again = codes.decode(*codes.encode(values, torch.uint8))
    assert again[1] > 0
    assert again[2] == 0
    zeros = codes.decode(*codes.encode(torch.zeros(300), torch.int8))
    assert torch.equal(zeros, torch.zeros(300))


def test_moved_to_other_blocks_codes_keep_their_numbers():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4096, generator=generator).square()
    decoded = codes.decode(*codes.encode(values, torch.uint8))
    kept = torch.rand(4096, generator=generator) < 0.1
    moved = codes.decode(*codes.encode(decoded[kept], torch.uint8))
    assert torch.equal(moved, decoded[kept])


def test_what_is_not_finite_has_no_code():
    values = torch.tensor([float("nan"), float("inf"), 1.0])
    for dtype in (torch.int8, torch.uint8):
        assert codes.decode(*codes.encode(values, dtype)).isfinite().all()


@pytest.mark.parametrize("decay", [0.9, 0.999])
def test_a_running_average_follows_down_and_up(decay):
    """Rounding to nearest would stay: one step of the code is 9 %, one of the average 0.1 %."""
    for target, start in ((0.01, 1.0), (1.0, 0.01)):
        exact = torch.full((512,), start, dtype=torch.float64)
        coded = codes.encode(torch.full((512,), start), torch.uint8)
        for step in range(2000):
            exact = exact * decay + target * (1 - decay)
            values = codes.decode(*coded) * decay + target * (1 - decay)
            coded = codes.encode(values, torch.uint8, offsets(0, 512, step, CPU))
        ratio = codes.decode(*coded).double() / exact
        assert bool((ratio < STEP**2.5).all())
        assert bool((ratio > STEP**-2.5).all())
        assert abs(float(ratio.log2().mean())) < 1 / 8


def test_offsets_are_spread_and_depend_on_step_and_place_only():
    first = offsets(512, 1000, 7, CPU)
    assert torch.equal(first, offsets(0, 1512, 7, CPU)[512:])
    assert not torch.equal(first, offsets(512, 1000, 8, CPU))
    assert bool(((first >= 0) & (first < 1)).all())
    assert first.mean() == pytest.approx(0.5, abs=0.01)
    over_steps = torch.stack([offsets(3, 1, step, CPU) for step in range(1000)])
    assert torch.histc(over_steps, 10, 0, 1).sub(100).abs().max() <= 3
