import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.bits import pack_bits
from gossamer.ops import _native
from gossamer.ops.training.expansion import expand, fill, gather, gather_kept

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def layer(rows, columns, density, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    weight = torch.randn(rows, columns, generator=generator).to(dtype)
    return weight, mask


@pytest.mark.parametrize("kernels", _native.available_kernels())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(0, 0), (0, 9), (9, 0), (1, 1), (3, 8), (3, 15), (5, 64), (4, 65), (300, 301)]
)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_round_trip(shape, density, dtype, kernels, monkeypatch):
    monkeypatch.setattr("gossamer.ops.training.expansion.active_kernels", lambda: kernels)
    weight, mask = layer(*shape, density, dtype)
    bits, values = pack_bits(mask), weight[mask]
    dense = expand(values, bits, shape[1])
    assert torch.equal(dense, torch.where(mask, weight, 0))
    assert torch.equal(gather_kept(dense, bits, values.numel()), values)


@given(st.integers(0, 20), st.integers(0, 140), st.floats(0, 1), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_native_equals_torch(rows, columns, density, seed):
    weight, mask = layer(rows, columns, density, seed=seed)
    bits, values = pack_bits(mask), gather(weight, mask)
    native = torch.full((rows, columns), torch.nan)
    fill(native, values, bits)
    # A strided target is not for the native loops: the torch form runs.
    strided = torch.full((rows, 2 * columns), torch.nan)[:, ::2]
    fill(strided, values, bits)
    assert torch.equal(native, strided)
    assert torch.equal(gather_kept(weight, bits, values.numel()), values)
    assert torch.equal(gather_kept(weight.T.contiguous().T, bits, values.numel()), values)


@pytest.mark.parametrize("kernels", _native.available_kernels())
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_nothing_is_touched_behind_the_ends(itemsize, kernels):
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[itemsize]
    random = np.random.default_rng(0)
    for columns in range(1, 40):
        mask = random.random((2, columns)) < 0.5
        bits = np.packbits(mask, axis=1, bitorder="little")
        kept = int(mask.sum())
        dense, values = (np.full(size + 20, 7, kind) for size in (2 * columns, kept))
        values[:kept] = np.arange(1, kept + 1)
        address = values.ctypes.data, kept, bits, columns, itemsize, dense.ctypes.data
        _native.expand(*address, kernels)
        assert (dense[2 * columns :] == 7).all()
        assert (dense[: 2 * columns].reshape(mask.shape)[mask] == values[:kept]).all()
        values[:kept] = 0
        _native.gather(*address, kernels)
        assert (values[kept:] == 7).all()
        assert (values[:kept] == np.arange(1, kept + 1)).all()


def test_threads_do_not_matter():
    weight, mask = layer(400, 500, 0.4)
    bits, values = pack_bits(mask), weight[mask]
    torch.set_num_threads(2)
    try:
        assert torch.equal(expand(values, bits, 500), weight * mask)
        assert torch.equal(gather_kept(weight, bits, values.numel()), values)
    finally:
        torch.set_num_threads(1)


def test_nan_and_negative_zero_are_moved_untouched():
    values = torch.tensor([float("nan"), -0.0, float("inf")])
    bits = pack_bits(torch.tensor([[True, False, True, True]]))
    dense = expand(values, bits, 4)
    assert dense.view(torch.int32)[0, [0, 2, 3]].tolist() == values.view(torch.int32).tolist()
    assert dense[0, 1] == 0


@pytest.mark.parametrize("move", [_native.expand, _native.gather])
def test_binding_refuses_wrong_arguments(move):
    values, dense = np.zeros(3, np.float32), np.full(8, 5, np.float32)
    bits = np.array([[7]], np.uint8)
    address = values.ctypes.data, dense.ctypes.data
    for num_values, columns, itemsize in ((2, 3, 4), (3, 9, 4), (3, 2, 4), (3, 3, 3)):
        with pytest.raises(ValueError, match=r"mask_bits|itemsize"):
            move(address[0], num_values, bits, columns, itemsize, address[1], "reference")
    with pytest.raises(ValueError, match="null"):
        move(0, 3, bits, 3, 4, address[1], "reference")
    with pytest.raises(ValueError, match="null"):
        move(address[0], 3, bits, 3, 4, 0, "reference")
    with pytest.raises(TypeError):
        move(address[0], 3, bits.astype(np.int64), 3, 4, address[1], "reference")
    assert (dense == 5).all()
