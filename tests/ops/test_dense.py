# SPDX-License-Identifier: Apache-2.0
import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer
from gossamer.errors import InputError, KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import Problem, _native, kernels_for
from gossamer.ops.kernels import available_kernels
from gossamer.ops.linear import dense
from gossamer.ops.linear.dense import KERNELS
from gossamer.ops.timing import Race
from gossamer.running.choice import Chooser, CostTable

SETS = available_kernels()
EPS = torch.finfo(torch.float32).eps
OFFERED = [kernel for kernel in KERNELS if kernel.is_offered()]
INT8 = [kernel for kernel in OFFERED if kernel.precision == "int8"]

pytestmark = pytest.mark.skipif(not OFFERED, reason="this torch has no dense int8 or bf16 products")
all_kernels = pytest.mark.parametrize("kernel", OFFERED, ids=lambda kernel: kernel.name)
int8_kernels = pytest.mark.parametrize("kernel", INT8, ids=lambda kernel: kernel.name)


@pytest.fixture(params=SETS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.fixture(params=[7, 8])
def bits(request, monkeypatch):
    monkeypatch.setattr(dense, "activation_bits", lambda: request.param)
    return request.param


def random_layer(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    return torch.randn(rows, columns, generator=generator) * mask, mask


def packed(kernel, weight, mask):
    problem = Problem(SparseMatrix.from_dense(weight, mask))
    assert kernel.accepts(problem)
    return kernel.pack(problem)


def quantised(tensor, limit):
    """Rows as integers in float64, and what a step of each is worth."""
    top = tensor.abs().amax(1, keepdim=True)
    counts = top >= 2.0**-120
    scale = torch.where(counts, top / limit, 1.0)
    inverse = torch.where(counts, torch.full_like(top, limit) / top, 0.0)
    return (tensor * inverse).round().double(), scale.double()


def check_int8(kernel, weight, mask, x, bias, bits, activation="none"):
    """Integers must be exact: what is left are the roundings of scales, bias and activation."""
    codes, scale_w = quantised(weight.double(), 127)
    numbers, scale_x = quantised(x, 2 ** (bits - 1) - 1)
    product = (numbers @ codes.T) * scale_x * scale_w.float().double().T
    compare(kernel, weight, mask, x, bias, activation, product, product.abs() * 3 * EPS + 1e-35)


def compare(kernel, weight, mask, x, bias, activation, product, bound):
    y = packed(kernel, weight, mask)(x, bias, activation)
    wanted = product + (0 if bias is None else bias.double())
    bound = bound + (0 if bias is None else bias.abs().double() * EPS) + wanted.abs() * EPS
    if activation != "none":
        wanted, bound = getattr(F, activation)(wanted), bound * 1.13 + wanted.abs() * 4e-7
    assert y.shape == wanted.shape
    assert y.dtype is torch.float32
    assert bool(((y.double() - wanted).abs() <= bound).all())


def check(kernel, weight, mask, x, bias=None, activation="none"):
    if kernel.precision == "int8":
        return check_int8(kernel, weight, mask, x, bias, dense.activation_bits(), activation)
    rounded = [tensor.bfloat16().double() for tensor in (x, weight)]
    product, size = rounded[0] @ rounded[1].T, rounded[0].abs() @ rounded[1].abs().T
    # Sums in float32 in any order, then one rounding to bf16.
    bound = (weight.shape[1] + 8) * EPS * size + product.abs() * 2.0**-8 + 1e-35
    return compare(kernel, weight, mask, x, bias, activation, product, bound)


@all_kernels
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 15, 16, 17, 33, 64, 65])
def test_every_token_remainder(kernels, kernel, tokens):
    weight, mask = random_layer(37, 101, 0.3)
    check(kernel, weight, mask, torch.randn(tokens, 101), torch.randn(37))


@int8_kernels
def test_both_widths_of_activations(kernels, bits, kernel):
    weight, mask = random_layer(40, 130, 0.4)
    check(kernel, weight, mask, torch.randn(20, 130), torch.randn(40))


@all_kernels
@pytest.mark.parametrize("rows", [1, 7, 16, 17, 65])
@pytest.mark.parametrize("columns", [2, 3, 4, 5, 63, 64, 65, 777])
def test_every_remainder_of_the_weight(kernel, rows, columns):
    weight, mask = random_layer(rows, columns, 0.5)
    check(kernel, weight, mask, torch.randn(9, columns), torch.randn(rows))


@all_kernels
@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
def test_none_few_and_all_kept(kernel, density):
    weight, mask = random_layer(65, 130, density)
    check(kernel, weight, mask, torch.randn(7, 130), torch.randn(65))


@all_kernels
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations(kernel, activation):
    weight, mask = random_layer(40, 64, 0.4)
    check(kernel, weight, mask, torch.randn(5, 64), torch.randn(40), activation)


@all_kernels
def test_activations_without_a_float64_form(kernel):
    weight, mask = random_layer(40, 64, 0.4)
    run, x = packed(kernel, weight, mask), torch.randn(5, 64)
    y = run(x, None, "none")
    quick, tanh = run(x, None, "quick_gelu"), run(x, None, "gelu_tanh")
    assert torch.allclose(quick, y * torch.sigmoid(1.702 * y))
    assert torch.allclose(tanh, F.gelu(y, approximate="tanh"))


@int8_kernels
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_largest_products_do_not_saturate(bits, kernel, sign):
    signs = torch.ones(16, 800) * sign if sign else torch.randn(16, 800).sign()
    x = torch.cat([torch.ones(5, 800), -torch.ones(5, 800), signs[:1].expand(5, 800)]) * 3
    check(kernel, signs, torch.ones(16, 800, dtype=torch.bool), x)


def test_seven_bits_do_not_saturate_without_vnni():
    """oneDNN is told to be an older processor."""
    code = (
        "import torch, test_dense as t\n"
        "t.dense.activation_bits = lambda: 7\n"
        "[t.test_largest_products_do_not_saturate(7, kernel, 1) for kernel in t.INT8]\n"
    )
    environment = os.environ | {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


@int8_kernels
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_tokens_that_are_not_finite_give_nan_and_touch_no_other(kernels, kernel, activation):
    weight, mask = random_layer(70, 133, 0.3)
    x, bias = torch.randn(12, 133), torch.randn(70)
    run = packed(kernel, weight, mask)
    clean = run(x, bias, activation)
    bad = {0: torch.nan, 5: torch.inf, 6: -torch.inf, 11: torch.nan}
    for column, (token, value) in zip((0, 5, 100, 132), bad.items(), strict=True):
        x[token, column] = value
    y = run(x, bias, activation)
    is_bad = torch.zeros(12, dtype=torch.bool)
    is_bad[list(bad)] = True
    assert bool(y[is_bad].isnan().all())
    assert torch.equal(y[~is_bad], clean[~is_bad])


@int8_kernels
def test_tokens_of_zeros_give_the_bias(kernels, kernel):
    weight, mask = random_layer(30, 50, 0.5)
    x, bias = torch.randn(9, 50), torch.randn(30)
    x[3], x[4], x[5] = 0.0, -0.0, 1e-38
    y = packed(kernel, weight, mask)(x, bias, "relu")
    assert torch.equal(y[3:6], F.relu(bias).expand(3, 30))


@int8_kernels
def test_tokens_of_other_sizes_and_threads_do_not_change_a_bit(kernel):
    weight, mask = random_layer(300, 500, 0.3)
    x = torch.randn(12, 500) * torch.logspace(-3, 3, 12).unsqueeze(1)
    run, before = packed(kernel, weight, mask), torch.get_num_threads()
    wanted = torch.cat([run(row[None], None, "none") for row in x])
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(run(x, None, "none"), wanted)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(len(INT8) < 2, reason="one library only")
def test_both_libraries_give_the_same_bits_in_every_kernel_set(monkeypatch):
    weight, mask = random_layer(64, 200, 0.5)
    x, bias, results = torch.randn(9, 200), torch.randn(64), []
    for name in SETS:
        monkeypatch.setenv("GOSSAMER_KERNELS", name)
        results += [packed(kernel, weight, mask)(x, bias, "none") for kernel in INT8]
    assert all(torch.equal(result, results[0]) for result in results)


@given(
    rows=st.integers(1, 40),
    columns=st.integers(2, 300),
    tokens=st.integers(0, 40),
    density=st.floats(0, 1),
    which=st.integers(0, 2),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_any_shape(rows, columns, tokens, density, which, seed):
    weight, mask = random_layer(rows, columns, density, seed)
    kernel = OFFERED[which % len(OFFERED)]
    check(kernel, weight, mask, torch.randn(tokens, columns), torch.randn(rows))


@all_kernels
def test_strided_and_higher_dimensional_activations(kernel):
    weight, mask = random_layer(24, 48, 0.3)
    wide, run = torch.randn(5, 6, 96), packed(kernel, weight, mask)
    overlapping = torch.randn(1, 48).expand(4, 48)
    for x in (wide[..., :48], wide[..., ::2], wide[0, 0, :48], wide[:0, :, :48], overlapping):
        before = x.clone()
        y = run(x, None, "none")
        assert y.shape == (*x.shape[:-1], 24)
        assert torch.equal(y, run(x.clone(memory_format=torch.contiguous_format), None, "none"))
        assert torch.equal(x, before)


@int8_kernels
def test_error_on_gaussian_data_is_that_of_the_other_int8_kernels(kernel):
    weight, mask = random_layer(256, 768, 0.5)
    x, bits = torch.randn(16, 768), dense.activation_bits()
    reach_x, reach_w = x.abs().amax(1).mean(), weight.abs().amax(1).mean()
    expected = math.hypot(reach_x / (2 ** (bits - 1) - 1), reach_w / 127) / math.sqrt(12)
    wanted = x.double() @ weight.double().T
    y = packed(kernel, weight, mask)(x, None, "none").double()
    assert float((y - wanted).norm() / wanted.norm()) < 1.1 * expected


@all_kernels
def test_shapes_without_work_are_not_accepted(kernel):
    for shape in ((0, 5), (5, 0), (5, 1)):
        assert not kernel.accepts(Problem(SparseMatrix.from_dense(torch.ones(shape))))


@int8_kernels
def test_weights_that_are_not_finite_are_refused(kernel):
    weight, mask = random_layer(8, 16, 0.5)
    weight[mask] = math.nan
    with pytest.raises(KernelError, match="must be finite"):
        packed(kernel, weight, mask)


@all_kernels
def test_what_cannot_be_computed_is_refused(kernel):
    weight, mask = random_layer(8, 16, 0.5)
    run = packed(kernel, weight, mask)
    for x, activation, message in (
        (torch.randn(3, 15), "none", "last dimension of x must be 16"),
        (torch.randn(3, 16).double(), "none", "float32"),
        (torch.randn(3, 16), "tanh", "activation must be one of"),
        (torch.randn(3, 16, requires_grad=True), "none", "gives no gradients"),
    ):
        with pytest.raises(InputError, match=message):
            run(x, None, activation)


@all_kernels
def test_compilers_see_one_op_and_copies_share_the_weight(kernel):
    weight, mask = random_layer(8, 16, 0.5)
    run, x = packed(kernel, weight, mask), torch.randn(3, 16)
    traced = torch.compile(lambda x: run(x, None, "none") + 1, fullgraph=True, backend="eager")
    assert torch.equal(traced(x), run(x, None, "none") + 1)
    assert copy.deepcopy(run) is run
    assert run.nnz == int(mask.sum())
    assert not run.is_lossless


def test_the_library_of_the_process_stays_what_it_was():
    before = torch.backends.quantized.engine
    for kernel in INT8:
        packed(kernel, *random_layer(8, 16, 0.5))
    assert torch.backends.quantized.engine == before


def test_binding_refuses_what_it_cannot_check_later():
    x, scales = np.ones(4, np.float32), np.ones(2, np.float32)
    out = np.zeros(8, np.uint8)

    def to_bytes(
        tokens=2, columns=2, stride=2, bits=8, start=x.ctypes.data, bytes_=out.ctypes.data
    ):
        places = bytes_, 0, scales.ctypes.data
        _native.tokens_to_bytes(start, tokens, columns, stride, bits, *places, "reference")

    to_bytes()
    assert out.tolist() == [255] * 4 + [0] * 4
    for wrong in ({"tokens": -1}, {"stride": 1}, {"bits": 9}, {"start": 0}, {"bytes_": 0}):
        with pytest.raises(ValueError, match=r"must|shorter"):
            to_bytes(**wrong)
    with pytest.raises(ValueError, match="y must not be null"):
        _native.finish_tokens(0, 1, 1, 0, 0, "reference")


def race_won_by(name, kernels):
    """A timer in whose races one kernel wins."""

    def timer(dense_call, *calls):
        for call in calls:
            call()
        return Race((100.0, *(10.0 if kernel.name == name else 50.0 for kernel in kernels)))

    return timer


@all_kernels
def test_compile_races_them_and_explain_names_them(tmp_path, kernel):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48))
    gossamer.sparsify(model, sparsity=0.5)
    problem = Problem(model[0].matrix(), kernel.precision)
    kernels = [one for one in kernels_for("linear", problem) if one.suits(4)]
    assert kernel in kernels
    chooser = Chooser(CostTable(tmp_path / "c.json"), race_won_by(kernel.name, kernels))
    fast = gossamer.compile(model, tokens=4, precision=kernel.precision, chooser=chooser)
    (row,) = gossamer.explain(fast)
    assert (row.kernel, row.is_sparse) == (kernel.name, False)
    assert "10.00x dense" in row.why
    x, y = torch.randn(4, 64), model[0].to_dense().requires_grad_(False)
    assert float((fast(x) - y(x)).norm() / y(x).norm()) < 0.03
    # What the layer keeps is what was pruned, not what a library made of it.
    again = fast[0].to_compact()
    assert torch.equal(again.to_dense().weight, y.weight)


def test_full_precision_never_runs_them():
    matrix = SparseMatrix.from_dense(*random_layer(8, 16, 0.5))
    names = {kernel.name for kernel in kernels_for("linear", Problem(matrix, "fp32"))}
    assert not names & {kernel.name for kernel in KERNELS}
