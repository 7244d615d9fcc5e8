import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import FormatError, InputError, KernelError
from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.bits import pack_bits
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels, available_kernels
from gossamer.ops.linear import pack_panel
from gossamer.ops.linear.packed_weight import packed_linear

SETS = available_kernels()


def random_layer(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    weight = torch.randn(rows, columns, generator=generator) * mask
    return weight, mask


def packed(weight, mask):
    return pack_panel(SparseMatrix.from_dense(weight, mask))


def check_against_float64(weight, mask, x, bias=None, activation="none"):
    y = packed(weight, mask)(x, bias, activation)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    functions = {"none": lambda v: v, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}
    wanted = functions[activation](wanted)
    # Rounding grows with the number of additions; 4e-7 is the bound of the polynomials.
    scale = F.linear(x.abs().double(), weight.abs().double(), None)
    scale = scale + (0 if bias is None else bias.abs().double()) + 1e-30
    terms = max(int(mask.sum(1).max()) if mask.numel() else 0, 1) + 1
    bound = scale * torch.finfo(torch.float32).eps * (2 + terms**0.5)
    bound = bound + (scale * 4e-7 if activation in ("gelu", "silu") else 0)
    assert y.shape == wanted.shape
    assert y.dtype is torch.float32
    assert bool(((y.double() - wanted).abs() <= bound).all())


@pytest.fixture(params=SETS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 100, 129])
def test_every_token_remainder(kernels, tokens):
    weight, mask = random_layer(37, 101, 0.3)
    x = torch.randn(tokens, 101)
    check_against_float64(weight, mask, x, torch.randn(37))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 15, 17, 127, 128, 129, 513, 1025])
@pytest.mark.parametrize("density", [0.03, 0.1, 0.5])
def test_every_row_remainder(kernels, rows, density):
    weight, mask = random_layer(rows, 50, density)
    check_against_float64(weight, mask, torch.randn(19, 50), torch.randn(rows))


@pytest.mark.parametrize("columns", [0, 1, 7, 8, 9, 95, 96, 97, 191, 192, 193, 257, 400])
@pytest.mark.parametrize("density", [0.03, 0.1, 0.5])
def test_every_column_remainder(kernels, columns, density):
    weight, mask = random_layer(33, columns, density)
    check_against_float64(weight, mask, torch.randn(21, columns), None)


@pytest.mark.parametrize("density", [0.0, 1e-3, 1.0])
def test_none_few_and_all_kept(kernels, density):
    weight, mask = random_layer(65, 130, density)
    check_against_float64(weight, mask, torch.randn(70, 130), torch.randn(65))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_fused_activations(kernels, activation):
    weight, mask = random_layer(40, 64, 0.4)
    x = torch.randn(50, 64) * torch.logspace(-3, 1, 50).unsqueeze(1)
    check_against_float64(weight, mask, x, torch.randn(40), activation)


def test_activations_at_extreme_inputs(kernels):
    weight, mask = torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    large = [20.0, 87.0, 88.0, 89.0, 100.0, 1e4, 3e38, torch.inf]
    x = torch.tensor([0.0, -0.0, torch.nan, *large, *(-v for v in large)]).unsqueeze(1)
    for name, function in (("relu", F.relu), ("gelu", F.gelu), ("silu", F.silu)):
        y = packed(weight, mask)(x, None, name)
        # In float64: torch's float32 GELU turns 3e38 into NaN on AVX-512.
        expected = function(x.double()).float()
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 210),
    tokens=st.integers(0, 70),
    density=st.floats(0, 1),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_equals_the_dense_product(rows, columns, tokens, density, seed):
    weight, mask = random_layer(rows, columns, density, seed)
    check_against_float64(weight, mask, torch.randn(tokens, columns), torch.randn(rows))


@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (130, 200), (0, 5), (5, 0)])
def test_unpack_gives_back_what_was_packed(shape, density):
    weight, mask = random_layer(*shape, density)
    weight[mask] = torch.where(torch.rand(int(mask.sum())) < 0.2, 0.0, weight[mask])  # kept zeros
    matrix = packed(weight, mask).unpack()
    assert torch.equal(matrix.values, weight[mask])
    assert torch.equal(matrix.mask(), mask)


def test_strided_and_higher_dimensional_activations():
    weight, mask = random_layer(24, 48, 0.3)
    wide = torch.randn(5, 6, 96)
    for x in (wide[..., :48], wide[..., ::2], wide.transpose(0, 1)[..., 48:], wide[0, 0, :48]):
        check_against_float64(weight, mask, x, torch.randn(24))
    column_major = torch.randn(48, 30).T
    check_against_float64(weight, mask, column_major)


def test_broadcast_rows_are_read_once_each():
    weight, mask = random_layer(8, 16, 0.5)
    x = torch.randn(1, 16).expand(9, 16)
    check_against_float64(weight, mask, x)


# In a process of its own: packages of others, such as scikit-learn, bring a pool that is theirs.
ONE_POOL = """
import {first}
from gossamer.ops import _native
import torch
from pathlib import Path
torch.randn(64, 64) @ torch.randn(64, 64)
maps = Path("/proc/self/maps").read_text().splitlines()
print(len({{line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line}}))
"""


@pytest.mark.parametrize("first", ["torch", "gossamer.ops"])
def test_one_openmp_pool(first):
    program = ONE_POOL.format(first=first)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["1"]


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 16, dtype=torch.float64),
        torch.randn(3, 16).half(),
        torch.zeros(3, 16, dtype=torch.int64),
        torch.randn(3, 15),
        torch.tensor(1.0),
        torch.randn(3, 16, device="meta"),
        torch.randn(3, 16).to_sparse(),
    ],
    ids=["float64", "float16", "int", "width", "scalar", "device", "layout"],
)
def test_wrong_activations_are_refused(x):
    weight, mask = random_layer(8, 16, 0.5)
    with pytest.raises(InputError, match="packed linear"):
        packed(weight, mask)(x)


@pytest.mark.parametrize("bias", [torch.randn(7), torch.randn(8).double(), torch.randn(16)[::2]])
def test_wrong_bias_is_refused(bias):
    weight, mask = random_layer(8, 16, 0.5)
    with pytest.raises(InputError, match="bias"):
        packed(weight, mask)(torch.randn(3, 16), bias)


def test_unknown_activation_and_gradients_are_refused():
    weight, mask = random_layer(8, 16, 0.5)
    with pytest.raises(InputError, match="activation"):
        packed(weight, mask)(torch.randn(3, 16), None, "tanh")
    with pytest.raises(InputError, match="inference"):
        packed(weight, mask)(torch.randn(3, 16, requires_grad=True))
    with torch.no_grad():
        packed(weight, mask)(torch.randn(3, 16, requires_grad=True))


def test_weights_that_are_not_float32_are_refused():
    weight, mask = random_layer(8, 16, 0.5)
    with pytest.raises(KernelError, match="float32"):
        packed(weight.half(), mask)
    with pytest.raises(FormatError, match="packed mask"):
        pack_panel(SparseMatrix(Positions(pack_bits(mask)[:4], (8, 16)), weight[mask]))


def test_binding_refuses_what_it_cannot_check_later():
    values, bits = np.ones(3, np.float32), np.array([[7]], np.uint8)
    layer = _native.pack_panel(values, bits, 1, 3, "reference")
    with pytest.raises(TypeError):
        _native.pack_panel(values.astype(np.float64), bits, 1, 3, "reference")
    with pytest.raises(TypeError):
        _native.pack_panel(np.ones(6, np.float32)[::2], bits, 1, 3, "reference")
    for bad_bits, rows, columns in (([[15]], 1, 3), ([[7, 0]], 1, 3), ([[3]], 1, 3), ([[7]], 2, 3)):
        with pytest.raises(ValueError, match="mask_bits"):
            _native.pack_panel(values, np.array(bad_bits, np.uint8), rows, columns, "reference")
    with pytest.raises(ValueError, match="rows and columns"):
        _native.pack_panel(values, bits, -1, 3, "reference")
    with pytest.raises(ValueError, match="sse9"):
        _native.pack_panel(values, bits, 1, 3, "sse9")
    x, y = np.ones(3, np.float32), np.full(1, 42, np.float32)
    address = (x.ctypes.data, y.ctypes.data)
    for arguments in (
        (address[0], -1, 3, address[1], 1, 0, 0),
        (0, 1, 3, address[1], 1, 0, 0),
        (address[0], 1, 3, 0, 1, 0, 0),
        (address[0], 1, 2, address[1], 1, 0, 0),
        (address[0], 1, 3, address[1], 0, 0, 0),
        (address[0], 1, 3, address[1], 1, 0, 9),
    ):
        with pytest.raises(ValueError, match=r"must|stride|unknown|cannot"):
            layer.run(*arguments)
    assert y[0] == 42
    with pytest.raises(ValueError, match="wrong size"):
        layer.unpack(np.ones(4, np.float32), bits)


def test_forcing_an_impossible_kernel_set_is_an_error(monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", "neon")
    with pytest.raises(InputError, match="neon"):
        active_kernels()
    missing = {"reference", "avx2", "avx512"} - set(SETS)
    for name in missing:
        monkeypatch.setenv("GOSSAMER_KERNELS", name)
        with pytest.raises(KernelError, match="cannot run"):
            active_kernels()


def test_packed_op_passes_opcheck_and_compiles():
    weight, mask = random_layer(8, 16, 0.5)
    layer, x, bias = packed(weight, mask), torch.randn(3, 16), torch.randn(8)
    torch.library.opcheck(packed_linear, (x, bias, layer.handle, 8, 16, layer.kernel, "relu"))
    compiled = torch.compile(lambda v: layer(v, bias, "gelu"), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x, bias, "gelu"))


def test_a_packed_weight_that_is_gone_is_reported():
    weight, mask = random_layer(8, 16, 0.5)
    layer = packed(weight, mask)
    handle = layer.handle
    del layer
    with pytest.raises(KernelError, match="no longer exists"):
        packed_linear(torch.randn(3, 16), None, handle, 8, 16, "panel", "none")


def test_copies_share_and_pickles_are_refused():
    weight, mask = random_layer(8, 16, 0.5)
    layer = packed(weight, mask)
    assert copy.deepcopy(layer) is layer
    with pytest.raises(KernelError, match="pickled"):
        copy.copy(layer)
