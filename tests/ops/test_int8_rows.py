# SPDX-License-Identifier: Apache-2.0
"""The int8 kernels whose lanes are rows: `dense/int8` and `int8_window`."""

import pytest
import torch
import torch.nn.functional as F

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import Problem
from gossamer.ops.kernels import available_kernels
from gossamer.ops.linear import dense_int8, int8, int8_window, pack_int8

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True, params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.fixture(params=[dense_int8.pack_dense_int8, int8_window.pack_int8_windows])
def pack(request):
    return request.param


def random_matrix(rows, columns, density=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=draw) < density
    return SparseMatrix.from_dense(torch.randn(rows, columns, generator=draw) * mask, mask)


def exact(matrix, x, bits):
    """Integers in float64, by the rules of the page."""

    def quantised(rows, limit):
        top = rows.double().abs().amax(1, keepdim=True)
        counts = top >= 2.0**-120
        scale = torch.where(counts, top / limit, 1.0)
        return (rows.double() / scale * counts).round(), scale.float().double()

    codes_RK, scales_R1 = quantised(matrix.dense(), 127)
    numbers_TK, scales_T1 = quantised(x, 2 ** (bits - 1) - 1)
    return (numbers_TK @ codes_RK.T) * scales_T1 * scales_R1.T


def check(pack, matrix, x, bias=None, activation="none"):
    packed, quads = pack(matrix), pack_int8(matrix, "quad")
    y = packed(x, bias, activation)
    linear = packed(x, bias)
    assert torch.equal(linear, quads(x, bias))
    # A product that stands on the edge of two integers may be rounded either way in float64.
    wanted = exact(matrix, x, quads.activation_bits) + (0 if bias is None else bias.double())
    step = x.abs().amax(1, keepdim=True).double() / 60 * float(matrix.dense().abs().max())
    assert bool(((linear.double() - wanted).abs() <= step + wanted.abs() * 8 * EPS).all())
    if activation != "none":
        wanted = getattr(F, activation)(linear.double())
        assert bool(((y.double() - wanted).abs() <= 4e-6 * (1 + wanted.abs())).all())


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 11, 12, 13, 23, 24, 25, 64, 65, 131])
def test_every_token_remainder(pack, tokens, density):
    draw = torch.Generator().manual_seed(tokens)
    check(
        pack,
        random_matrix(37, 101, density),
        torch.randn(tokens, 101, generator=draw),
        torch.randn(37),
    )


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 127, 129, 145])
@pytest.mark.parametrize("columns", [1, 3, 4, 5, 63, 64, 97, 384, 388, 767, 769, 1600])
def test_every_remainder_of_the_weight(pack, rows, columns):
    x = torch.randn(9, columns, generator=torch.Generator().manual_seed(columns))
    check(pack, random_matrix(rows, columns, 0.7), x, torch.randn(rows))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations(pack, activation):
    check(pack, random_matrix(40, 64), torch.randn(14, 64), torch.randn(40), activation)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0)])
@pytest.mark.parametrize("tokens", [0, 1, 13])
def test_empty_sizes(pack, shape, tokens):
    y = pack(random_matrix(*shape))(torch.randn(tokens, shape[1]))
    assert torch.equal(y, torch.zeros(tokens, shape[0]))


def test_a_token_that_is_not_finite_spoils_itself_only(pack):
    x = torch.randn(14, 20)
    clean = pack(random_matrix(18, 20))(x)
    x[3, 4], x[9, 0] = float("nan"), float("inf")
    y = pack(random_matrix(18, 20))(x)
    bad = torch.zeros(14, dtype=torch.bool)
    bad[[3, 9]] = True
    assert bool(y[bad].isnan().all())
    assert torch.equal(y[~bad], clean[~bad])


def test_strided_rows_and_leading_dimensions(pack):
    matrix, x = random_matrix(19, 24), torch.randn(3, 7, 48)[..., :24]
    packed = pack(matrix)
    assert torch.equal(packed(x), packed(x.contiguous().view(21, 24)).view(3, 7, 19))


def test_weights_without_a_scale_are_refused(pack):
    for bad in (float("nan"), float("inf")):
        with pytest.raises(KernelError, match="finite"):
            pack(SparseMatrix.from_dense(torch.tensor([[1.0, bad]])))


def test_wider_blocks_of_columns_than_one(pack):
    """Sums wait between blocks."""
    for columns in (768, 1537, 3072):
        x = torch.randn(27, columns, generator=torch.Generator().manual_seed(columns))
        check(pack, random_matrix(35, columns, 0.2), x)


def test_engines_take_one_of_them_at_most():
    (dense,), (window,) = dense_int8.KERNELS, int8_window.KERNELS
    for density, name in ((0.1, None), (0.3, window), (0.5, dense), (0.7, dense), (1.0, dense)):
        problem = Problem(random_matrix(32, 64, density), "int8", engine="encoder")
        assert [k for k in (dense, window) if k.accepts(problem)] == ([name] if name else [])
    for kernel in (dense, window):
        assert kernel.accepts(Problem(random_matrix(32, 64, 0.2), "int8"))
        assert not kernel.accepts(Problem(random_matrix(1, int8.MAX_COLUMNS + 1, 0.1), "int8"))
