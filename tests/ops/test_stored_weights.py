# SPDX-License-Identifier: Apache-2.0
"""Packed weights as arrays and back: the same products, and nothing that is damaged is run."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels
from gossamer.ops.linear import PackedWeight, pack_panel
from gossamer.ops.linear.few import pack_few
from gossamer.ops.linear.few_int import pack_few_int, pack_few_int_offsets

SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (3, 65), (17, 64), (33, 130)]


def weight(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, columns, generator=generator)
    return dense * (torch.rand(rows, columns, generator=generator) < density)


def of_nm(rows, columns):
    dense = weight(rows, columns, 1.0)
    return dense * (torch.arange(columns) % 4 < 2)


def with_offsets(rows, columns, group=32):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (rows, columns), generator=generator)
    scales = torch.rand(rows, -(-columns // group), generator=generator).half()
    return pack_few_int_offsets(codes, scales, -scales, group)


def packed_weights(rows, columns):
    """Every form and type that can be stored, with zeros and without."""
    for density in (0.4, 1.0):
        matrix = SparseMatrix.from_dense(weight(rows, columns, density))
        for dtype in ("int8", "int4"):
            yield pack_few_int(matrix, dtype)
        for form, dtype in itertools.product(
            ("bitmask", "indexed"), ("fp32", "bf16", "int8", "int4")
        ):
            yield pack_few(matrix, form, dtype)
    for dtype in ("fp32", "bf16", "int8", "int4"):
        yield pack_few(SparseMatrix.from_dense(of_nm(rows, columns)), "nm", dtype, group=(2, 4))
    yield with_offsets(rows, columns)


def aligned(array):
    """A copy where kernels may read it."""
    memory = np.zeros(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    memory[begin : begin + array.nbytes] = array
    return memory[begin : begin + array.nbytes]


def stored(packed):
    family, numbers, arrays = _native.stored_weight(packed._native)
    return family, list(numbers), [aligned(array) for array in arrays]


def restored(family, numbers, arrays):
    return _native.restore_weight(
        family=family, numbers=numbers, arrays=arrays, kernels=active_kernels()
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_restored_weight_is_the_same(shape):
    x = torch.randn(3, shape[1], generator=torch.Generator().manual_seed(2))
    for packed in packed_weights(*shape):
        again = PackedWeight(restored(*stored(packed)), packed.kernel)
        assert (again.shape, again.nnz, again.nbytes) == (packed.shape, packed.nnz, packed.nbytes)
        assert torch.equal(again(x), packed(x)), packed.kernel
        assert again.is_lossless == packed.is_lossless
        if packed.is_lossless:
            assert torch.equal(again.unpack().dense(), packed.unpack().dense())


def test_arrays_live_as_long_as_the_weight():
    packed = pack_few_int(SparseMatrix.from_dense(weight(40, 70, 0.5)))
    x = torch.randn(2, 70)
    wanted, told = packed(x), stored(packed)
    again = PackedWeight(restored(*told), packed.kernel)
    del told, packed
    junk = [np.ones(1 << 16) for _ in range(50)]
    assert torch.equal(again(x), wanted)
    assert len(junk) == 50


def test_other_families_stay_in_their_process():
    packed = pack_panel(SparseMatrix.from_dense(weight(8, 8, 0.5)))
    assert _native.stored_weight(packed._native) is None


def test_dense_weights_need_no_mask():
    dense = weight(33, 130, 1.0)
    dense[3, 5] = 0.0  # a zero that is kept
    values = dense.flatten().numpy()
    bits = np.packbits(np.ones((33, 130), bool), axis=1, bitorder="little")
    for dtype in ("int8", "int4"):
        options = {"kernels": active_kernels(), "dtype": dtype, "scale_group": 32}
        one = _native.pack_few_int(values, None, 33, 130, **options)
        other = _native.pack_few_int(values, bits, 33, 130, **options)
        for mine, wanted in zip(
            _native.stored_weight(one)[2], _native.stored_weight(other)[2], strict=True
        ):
            assert np.array_equal(mine, wanted)
    with pytest.raises(ValueError, match="rows x columns"):
        _native.pack_few_int(values[1:], None, 33, 130, **options)


def test_what_does_not_fit_is_refused():
    for packed in packed_weights(33, 130):
        family, numbers, arrays = stored(packed)
        with pytest.raises(ValueError, match="there is no family"):
            restored("many", numbers, arrays)
        for wrong in (numbers[:-1], [*numbers, 0]):
            with pytest.raises(ValueError, match="stored weight"):
                restored(family, wrong, arrays)
        for wrong in (arrays[:-1], [*arrays, arrays[0]], [arrays[0], arrays[1][1:], *arrays[2:]]):
            with pytest.raises(ValueError, match="stored weight"):
                restored(family, numbers, wrong)
        for place, array in enumerate(arrays):
            if array.nbytes:
                shorter = [*arrays]
                shorter[place] = array[: array.nbytes // 2 // 8 * 8]
                with pytest.raises(ValueError, match="stored weight"):
                    restored(family, numbers, shorter)


def test_an_index_out_of_the_columns_is_refused():
    dense = torch.zeros(4, 100)
    dense[:, 90] = 1.0
    family, numbers, arrays = stored(pack_few(SparseMatrix.from_dense(dense), "indexed"))
    arrays[0][0] = 120
    with pytest.raises(ValueError, match="leads out of the columns"):
        restored(family, numbers, arrays)
    family, numbers, arrays = stored(pack_few(SparseMatrix.from_dense(dense), "bitmask"))
    arrays[2].view(np.int64)[1] = 1 << 40
    with pytest.raises(ValueError, match="do not begin"):
        restored(family, numbers, arrays)
    family, numbers, arrays = stored(pack_few_int(SparseMatrix.from_dense(dense)))
    arrays[0].view(np.uint64)[1] |= np.uint64(1) << np.uint64(63)
    with pytest.raises(ValueError, match=r"beyond the last column|another number"):
        restored(family, numbers, arrays)
    matrix = SparseMatrix.from_dense(of_nm(9, 9))
    family, numbers, arrays = stored(pack_few(matrix, "nm", group=(2, 3)))
    arrays[0][:] = 255
    with pytest.raises(ValueError, match="out of its window"):
        restored(family, numbers, arrays)


KINDS = len(list(packed_weights(1, 1)))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, KINDS - 1), st.data())
def test_a_flipped_bit_is_refused_or_runs_inside_its_arrays(kind, data):
    packed = next(itertools.islice(packed_weights(17, 70), kind, None))
    family, numbers, arrays = stored(packed)
    filled = [place for place, array in enumerate(arrays) if array.nbytes]
    place = data.draw(st.sampled_from([-1, *filled]))
    if place < 0:
        at = data.draw(st.integers(0, len(numbers) - 1))
        numbers[at] ^= 1 << data.draw(st.integers(0, 40))
    else:
        at = data.draw(st.integers(0, arrays[place].nbytes - 1))
        arrays[place][at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        again = restored(family, numbers, arrays)
    except ValueError:
        return
    y = PackedWeight(again, packed.kernel)(torch.ones(2, again.columns))
    assert y.shape == (2, again.rows)
