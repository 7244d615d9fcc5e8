import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_columns import check_against_float64, matrix, same_bits_on_two_threads

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import Problem, _native
from gossamer.ops.kernels import available_kernels
from gossamer.ops.linear.shared_columns import KERNELS, pack_strip
from gossamer.patterns import parse_pattern


def problem(weight, mask, pattern):
    return Problem(SparseMatrix.from_dense(weight, mask, pattern))


def block_layer(rows, columns, block_rows, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.rand(-(-rows // block_rows), columns, generator=generator) < density
    mask = blocks.repeat_interleave(block_rows, 0)[:rows]
    return torch.randn(rows, columns, generator=generator) * mask, mask


def check(rows, columns, block_rows, density, tokens, activation="none", seed=0):
    weight, mask = block_layer(rows, columns, block_rows, density, seed)
    layer = pack_strip(matrix(weight, mask), block_rows=block_rows)
    assert layer.shape == (rows, columns)
    assert layer.nnz == int(mask.sum())
    x, bias = torch.randn(tokens, columns), torch.randn(rows)
    check_against_float64(layer, weight, mask, x, bias, activation)
    check_against_float64(layer, weight, mask, x, None, activation)


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("block_rows", [2, 3, 4])
def test_every_token_remainder(kernels, block_rows):
    for tokens in (0, 1, 2, 7, 8, 9, 16, 17, 24, 25, 31, 33, 48, 49, 65, 100):
        check(36, 101, block_rows, 0.3, tokens)


@pytest.mark.parametrize("block_rows", [2, 3, 4, 5, 6, 7, 8, 16, 20, 300])
def test_every_row_remainder_and_block_height(kernels, block_rows):
    for rows in (0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 129, 515):
        check(rows, 50, block_rows, 0.4, 19)


@pytest.mark.parametrize("columns", [0, 1, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 2050])
def test_every_column_remainder(kernels, columns):
    for density in (0.0, 0.05, 1.0):
        check(16, columns, 4, density, 25)
        check(6, columns, 2, density, 33)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations(kernels, activation):
    check(40, 64, 4, 0.4, 50, activation)


def test_one_full_block_row(kernels):
    mask = torch.zeros(32, 70, dtype=torch.bool)
    mask[8:12] = True
    weight = torch.randn(32, 70) * mask
    layer = pack_strip(matrix(weight, mask), block_rows=4)
    check_against_float64(layer, weight, mask, torch.randn(30, 70), torch.randn(32))


@given(
    rows=st.integers(0, 70),
    columns=st.integers(0, 300),
    block_rows=st.integers(2, 18),
    tokens=st.integers(0, 70),
    density=st.floats(0, 1),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_equals_the_dense_product(rows, columns, block_rows, tokens, density, seed):
    check(rows, columns, block_rows, density, tokens, seed=seed)


def test_strided_and_higher_dimensional_activations():
    weight, mask = block_layer(24, 48, 4, 0.3)
    layer, wide = pack_strip(matrix(weight, mask), block_rows=4), torch.randn(5, 6, 96)
    for x in (wide[..., :48], wide[..., ::2], wide.transpose(0, 1)[..., 48:], wide[0, 0, :48]):
        check_against_float64(layer, weight, mask, x, torch.randn(24))


@pytest.mark.parametrize("block_rows", [4, 5])
def test_threads_do_not_change_a_bit(block_rows):
    weight, mask = block_layer(700, 300, block_rows, 0.2)
    assert same_bits_on_two_threads(pack_strip(matrix(weight, mask), block_rows=block_rows), 300)


@pytest.mark.parametrize("pattern", ["block:16x1", "block:4x4", "block:16x16", "block:2x8"])
def test_kernel_prepares_block_weights(pattern):
    kernel = KERNELS[0]
    weight = torch.randn(64, 96)
    mask = parse_pattern(pattern).project(weight.abs(), 0.25)
    sparse = problem(weight * mask, mask, parse_pattern(pattern))
    assert kernel.accepts(sparse)
    check_against_float64(kernel.pack(sparse), weight * mask, mask, torch.randn(17, 96))


@pytest.mark.parametrize("pattern", ["block:1x4", "unstructured", "nmg:2:4:4"])
def test_kernel_leaves_other_patterns_alone(pattern):
    weight, chosen = torch.randn(64, 96), parse_pattern(pattern)
    density = 0.5 if chosen.fixed_density is None else None
    mask = chosen.project(weight.abs(), density)
    assert not KERNELS[0].accepts(problem(weight * mask, mask, chosen))


def test_masks_that_are_not_blocks_are_refused():
    mask = torch.ones(8, 16, dtype=torch.bool)
    mask[5, 3] = False
    weight = torch.randn(8, 16) * mask
    with pytest.raises(ValueError, match=r"blocks? of 4 .* rows 4 and 5 differ"):
        pack_strip(matrix(weight, mask), block_rows=4)
    for block_rows in (-4, 0, 1):
        with pytest.raises(ValueError, match=f"at least 2, got {block_rows}"):
            pack_strip(matrix(weight, mask), block_rows=block_rows)


def test_wrong_arrays_are_refused():
    weight, mask = block_layer(8, 16, 4, 0.5)
    with pytest.raises(KernelError, match="strip kernel: values must be float32"):
        pack_strip(matrix(weight.half(), mask), block_rows=4)
    values, bits = np.ones(2, np.float32), np.ones((2, 1), np.uint8)
    with pytest.raises(ValueError, match="keeps 2 weights but there are 3"):
        _native.pack_strip(np.ones(3, np.float32), bits, 2, 1, "reference", 2)
    with pytest.raises(ValueError, match="shape"):
        _native.pack_strip(values, bits, 3, 1, "reference", 2)
