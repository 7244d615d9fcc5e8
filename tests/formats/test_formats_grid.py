# SPDX-License-Identifier: Apache-2.0
"""Grids of int8 and int4 weights: exact, found again, and the same as the kernels'."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import FormatError, InputError
from gossamer.formats import SparseMatrix
from gossamer.formats.grid import Grid, find_grid, int4_grid, offsets_grid, row_grid
from gossamer.ops.linear import pack_int8
from gossamer.ops.linear.few_int import pack_few_int, pack_few_int_offsets


def _weight(rows, columns, seed=0, zeros=0.0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    return weight * (torch.rand(rows, columns, generator=generator) >= zeros)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 150), st.sampled_from([8, 4]), st.integers(1, 160),
    st.integers(0, 99), st.floats(1e-30, 1e30),
)  # fmt: skip
def test_rounding_is_near_idempotent_and_stored_to_the_bit(rows, columns, bits, span, seed, size):
    weight, grid = _weight(rows, columns, seed, 0.3) * size, Grid(bits, span)
    rounded = grid.rounded(weight)
    codes, scales, offsets = grid.encode(rounded)
    assert torch.equal(
        grid.decode(codes, scales, offsets).view(torch.int32), rounded.view(torch.int32)
    )
    assert torch.equal(grid.rounded(rounded), rounded)
    assert bool((rounded[weight == 0] == 0).all())
    # In exact arithmetic: half a step, and the clipping of the largest by a rounded scale.
    steps = scales.double().repeat_interleave(span, dim=1)[:, :columns]
    assert bool(((rounded.double() - weight.double()).abs() <= 0.51 * steps + 1e-300).all())
    grid.check_scales(scales, offsets, "here")
    stored = grid.pack(codes)
    assert torch.equal(grid.unpack(stored, tuple(codes.shape), "here"), codes)


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (0, 0)])
def test_empty_weights(shape):
    weight = torch.empty(shape)
    assert row_grid(shape[1]).rounded(weight).shape == shape
    assert find_grid(weight) is None


def test_what_is_on_a_grid_is_found():
    weight = _weight(20, 200, zeros=0.5)
    for grid in (row_grid(200), Grid(4, 64), Grid(4, 32), Grid(4, 16), int4_grid(200, 0.2)):
        found = find_grid(grid.rounded(weight))
        assert found is not None
        assert found.bits == grid.bits
        assert found.num_spans(200) == grid.num_spans(200)
    assert find_grid(weight) is None


@pytest.mark.parametrize("value", [-0.0, float("nan"), float("inf"), 1e-40])
def test_one_strange_weight_keeps_it_off_the_grid(value):
    weight = row_grid(200).rounded(_weight(20, 200))
    weight[13, 5] = value
    assert find_grid(weight) is None


def test_weights_without_a_scale_are_refused():
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="finite"):
            Grid(8, 2).rounded(torch.tensor([[1.0, bad]]))


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.8, 0.95])
def test_the_kernels_find_the_same_weights(zeros):
    weight = _weight(33, 448, zeros=zeros)
    mask = weight != 0
    density = float(mask.float().mean())
    for dtype, grid in (("int8", row_grid(448)), ("int4", int4_grid(448, density))):
        rounded = grid.rounded(weight)
        packed = pack_few_int(SparseMatrix.from_dense(rounded, mask), dtype)
        # One-hot tokens read the columns: activations of one value are exact in int8.
        columns = packed(torch.eye(448)).t()
        assert torch.allclose(columns, rounded, rtol=1e-6, atol=0)
    rounded = row_grid(448).rounded(weight)
    panel = pack_int8(SparseMatrix.from_dense(rounded, mask))
    assert torch.allclose(panel(torch.eye(448)).t(), rounded, rtol=1e-6, atol=0)


def test_bad_codes_and_scales_are_refused():
    grid8, grid4 = Grid(8, 4), Grid(4, 4)
    with pytest.raises(FormatError, match="below -127"):
        grid8.unpack(torch.tensor([[-128, 0]], dtype=torch.int8), (1, 2), "here")
    with pytest.raises(FormatError, match="below -7"):
        grid4.unpack(torch.tensor([0x80], dtype=torch.uint8), (1, 2), "here")
    with pytest.raises(FormatError, match="padding"):
        grid4.unpack(torch.tensor([0x8F], dtype=torch.uint8), (1, 1), "here")
    with pytest.raises(FormatError, match="bytes of uint8"):
        grid4.unpack(torch.zeros(3, dtype=torch.uint8), (1, 2), "here")
    with pytest.raises(FormatError, match="must be int8"):
        grid8.unpack(torch.zeros(1, 2), (1, 2), "here")
    for bad in (float("nan"), float("inf"), -1.0, 3e38):
        with pytest.raises(FormatError, match="scale"):
            grid8.check_scales(torch.tensor([[bad]], dtype=torch.bfloat16), None, "here")


@pytest.mark.parametrize("largest", [7, 5, 1])
def test_int4_whose_largest_weight_is_any_code_is_stored_to_the_bit(largest):
    generator = torch.Generator().manual_seed(largest)
    codes = torch.randint(-largest, largest + 1, (9, 200), generator=generator)
    scales = torch.rand(9, 4, generator=generator).bfloat16().float().repeat_interleave(64, 1)
    weight = codes * scales[:, :200]
    grid = find_grid(weight)
    assert grid is not None
    assert grid.bits == 4
    assert torch.equal(grid.decode(*grid.encode(weight)), weight)


def test_what_sparsegpt_rounds_is_stored_as_int4():
    from gossamer.patterns import Unstructured
    from gossamer.pruning.solvers import LayerProblem
    from gossamer.pruning.solvers.sparsegpt import SparseGPT

    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 192, generator=generator) for n in (24, 400))
    problem = LayerProblem("layer", weight, x.T @ x / 400, Unstructured(), weight.numel() // 2)
    found = SparseGPT(bits=4)(problem).weight_RK
    assert find_grid(found) == Grid(4, 64)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 150), st.sampled_from([32, 64]), st.integers(0, 99),
    st.floats(0.01, 1e3), st.floats(-3, 3),
)  # fmt: skip
def test_rounding_with_offsets_is_near_and_stored_to_the_bit(rows, columns, span, seed, size, mean):
    weight, grid = (_weight(rows, columns, seed) + mean) * size, offsets_grid(span)
    rounded = grid.rounded(weight)
    codes, scales, offsets = grid.encode(rounded)
    assert torch.equal(grid.decode(codes, scales, offsets), rounded)
    # Clipping may cost single weights more, a span never more than the plain choice would.
    for first in range(0, columns, span):
        part = weight[:, first : first + span]
        step = (part.amax(1) - part.amin(1)) / 15
        plain = part.shape[1] * (step * 0.52 + part.abs().amax(1) * 2**-11 + 1e-7).square()
        error = (rounded - weight)[:, first : first + span].square().sum(1)
        assert bool((error <= plain).all())
    grid.check_scales(scales, offsets, "here")
    stored = grid.pack(codes)
    assert torch.equal(grid.unpack(stored, tuple(codes.shape), "here"), codes)


@pytest.mark.parametrize(("lowest", "highest"), [(0, 15), (3, 15), (0, 9), (5, 6)])
def test_offsets_are_found_whatever_codes_are_used(lowest, highest):
    generator = torch.Generator().manual_seed(highest)
    codes = torch.randint(lowest, highest + 1, (9, 200), generator=generator)
    scales = torch.rand(9, 7, generator=generator).half() / 16
    offsets = -torch.rand(9, 7, generator=generator).half()
    weight = offsets_grid(32).decode(codes, scales, offsets)
    assert find_grid(weight) is None
    assert find_grid(weight, may_have_offsets=True) == offsets_grid(32)
    assert torch.equal(offsets_grid(32).decode(*offsets_grid(32).encode(weight)), weight)
    if (lowest, highest) == (0, 15):
        codes[:, ::32], codes[:, 1::32] = 0, 15
        weight = offsets_grid(32).decode(codes, scales, offsets)
        assert torch.equal(offsets_grid(32).rounded(weight), weight)  # as Q4_1 rounds


@pytest.mark.parametrize("span", [32, 64])
def test_the_kernel_with_offsets_has_the_same_weights(span):
    rounded = offsets_grid(span).rounded(_weight(33, 448) + 0.5)
    packed = pack_few_int_offsets(*offsets_grid(span).encode(rounded), span)
    torch.testing.assert_close(packed(torch.eye(448)).t(), rounded, rtol=1e-6, atol=1e-6)


def test_bad_offsets_are_refused():
    scales = torch.ones(1, 1, dtype=torch.float16)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(FormatError, match="offset"):
            offsets_grid(32).check_scales(scales, scales * bad, "here")
    with pytest.raises(InputError, match="too large"):
        offsets_grid(32).rounded(torch.full((1, 4), 1e6))
