# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

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
from gossamer.ops.kernels import available_extensions, available_kernels
from gossamer.ops.linear import bf16
from gossamer.ops.linear.bf16 import FORMS, KERNELS, pack_bf16
from gossamer.patterns import parse_pattern

SETS = available_kernels()
EPS = torch.finfo(torch.float32).eps


def problem(weight, mask, pattern):
    return Problem(SparseMatrix.from_dense(weight, mask, pattern))


def random_layer(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    return torch.randn(rows, columns, generator=generator) * mask, mask


def packed(weight, mask, form="panel"):
    return pack_bf16(SparseMatrix.from_dense(weight, mask), form)


def rounded(tensor):
    return tensor.bfloat16().double()


def check(weight, mask, x, bias=None, activation="none", form="panel"):
    """Against float64 sums of the rounded operands: their products are exact in float32."""
    y = packed(weight, mask, form)(x, bias, activation)
    start = torch.zeros(len(weight)).double() if bias is None else bias.double()
    wanted = rounded(x) @ rounded(weight).T + start
    size = rounded(x).abs() @ rounded(weight).abs().T + start.abs()
    # One rounding per addition, in any order; unused lanes of a pair add exact zeros, and sets of
    # accumulators a few more sums. vdpbf16ps flushes what is below the normal numbers.
    bound = (mask.sum(1) + 8) * (EPS / 2) * size + weight.shape[1] * 2.0**-125
    functions = {"none": lambda v: v, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}
    if activation in ("gelu", "silu"):
        bound = bound * 1.13 + size * 4e-7
    assert y.shape == wanted.shape
    assert y.dtype is torch.float32
    assert bool(((y.double() - functions[activation](wanted)).abs() <= bound).all())


@pytest.fixture(params=SETS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.fixture
def with_instructions(monkeypatch):
    """As on a CPU that has vdpbf16ps; the kernels that run are those of this CPU."""
    monkeypatch.setattr(bf16, "active_kernels", lambda: "avx512")
    monkeypatch.setattr(bf16, "available_extensions", lambda: ("avx512bf16",))


both_forms = pytest.mark.parametrize("form", FORMS)


@both_forms
@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 15, 16, 17, 20, 21, 31, 32, 33, 63, 64, 65, 130])
def test_every_token_remainder(kernels, form, tokens):
    weight, mask = random_layer(37, 101, 0.3)
    check(weight, mask, torch.randn(tokens, 101), torch.randn(37), form=form)


@both_forms
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 63, 64, 65, 128, 129, 513])
@pytest.mark.parametrize("density", [0.03, 0.5])
def test_every_row_remainder(kernels, form, rows, density):
    weight, mask = random_layer(rows, 50, density)
    check(weight, mask, torch.randn(19, 50), torch.randn(rows), form=form)


@both_forms
@pytest.mark.parametrize("columns", [0, 1, 2, 3, 8, 15, 16, 17, 191, 192, 193, 383, 385, 800])
@pytest.mark.parametrize("density", [0.03, 0.5])
def test_every_column_remainder(kernels, form, columns, density):
    weight, mask = random_layer(33, columns, density)
    check(weight, mask, torch.randn(41, columns), form=form)


@both_forms
@pytest.mark.parametrize("density", [0.0, 1e-3, 1.0])
def test_none_few_and_all_kept(kernels, form, density):
    weight, mask = random_layer(65, 130, density)
    check(weight, mask, torch.randn(70, 130), torch.randn(65), form=form)


@both_forms
def test_one_full_row(kernels, form):
    weight, mask = random_layer(40, 900, 0.0)
    mask[7] = True
    weight[7] = torch.randn(900)
    check(weight, mask, torch.randn(70, 900), form=form)


@both_forms
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_fused_activations(kernels, form, activation):
    weight, mask = random_layer(40, 64, 0.4)
    x = torch.randn(50, 64) * torch.logspace(-3, 1, 50).unsqueeze(1)
    check(weight, mask, x, torch.randn(40), activation, form)


@both_forms
def test_operands_are_rounded_to_nearest_even(kernels, form):
    # One weight and one activation per output: y is the exact product of the rounded operands.
    step = 2.0**-7  # of bf16 numbers in [1, 2)
    exact = torch.tensor([1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -1 - 0.49 * step])
    ones = torch.ones(4)
    for x, weight in ((exact, ones), (ones, exact)):
        y = packed(torch.diag(weight), torch.eye(4, dtype=torch.bool), form)(torch.diag(x))
        assert torch.equal(y.diagonal(), exact.bfloat16().float())
    assert exact.bfloat16()[0] == 1
    overflows = torch.full((1, 4), 3.4e38)  # beyond the largest bf16
    assert not bool(packed(torch.eye(4), torch.eye(4) > 0, form)(overflows).isfinite().any())


@both_forms
def test_tokens_that_are_not_finite_spoil_only_themselves(kernels, form):
    weight, mask = random_layer(70, 133, 0.3)
    x, bias = torch.randn(70, 133), torch.randn(70)
    clean = packed(weight, mask, form)(x, bias)
    signalling = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)  # upper half: inf
    bad = {0: torch.nan, 13: torch.inf, 14: -torch.inf, 69: signalling}
    for column, (token, value) in zip((0, 5, 100, 132), bad.items(), strict=True):
        x[token, column] = value
        y = packed(weight, mask, form)(x, bias)
        keeps = mask[:, column]
        assert not bool(y[token, keeps].isfinite().any())
    assert bool(y[69, mask[:, 132]].isnan().all())
    is_good = torch.ones(70, dtype=torch.bool)
    is_good[list(bad)] = False
    assert torch.equal(y[is_good], clean[is_good])


@both_forms
def test_extreme_but_finite_numbers(kernels, form):
    weight, mask = random_layer(20, 40, 0.5)
    for factor in (1e-35, 1e35):
        check(weight, mask, torch.randn(10, 40) * factor, form=form)
        check(weight * factor, mask, torch.randn(10, 40), form=form)


@both_forms
def test_threads_do_not_change_a_bit(kernels, form):
    weight, mask = random_layer(300, 500, 0.3)
    x, before = torch.randn(200, 500), torch.get_num_threads()
    layer = packed(weight, mask, form)
    try:
        for tokens in (3, 64, 130, 200):
            results = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results.append(layer(x[:tokens]))
            assert torch.equal(*results)
    finally:
        torch.set_num_threads(before)


@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 420),
    tokens=st.integers(0, 70),
    density=st.floats(0, 1),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(rows, columns, tokens, density, form, seed):
    weight, mask = random_layer(rows, columns, density, seed)
    check(weight, mask, torch.randn(tokens, columns), torch.randn(rows), form=form)


@both_forms
def test_strided_and_higher_dimensional_activations(form):
    weight, mask = random_layer(24, 48, 0.3)
    wide = torch.randn(5, 6, 96)
    layer = packed(weight, mask, form)
    for x in (wide[..., :48], wide[..., ::2], wide.transpose(0, 1)[..., 48:], wide[0, 0, :48]):
        assert torch.equal(layer(x), layer(x.clone(memory_format=torch.contiguous_format)))


def test_properties_visible_from_python():
    weight, mask = random_layer(16, 32, 0.5)
    layer = packed(weight, mask, "pair")
    assert (layer.kernel, layer.shape, layer.nnz) == ("bf16_pair", (16, 32), int(mask.sum()))
    assert not layer.is_lossless
    with pytest.raises(ValueError, match="does not keep"):
        layer.unpack()


@both_forms
def test_bytes_of_a_kept_weight(form):
    # Full rows: two bytes of value, and two of position for every weight or every pair.
    weight, mask = random_layer(256, 768, 1.0)
    expected = 4.0 if form == "panel" else 3.0
    assert packed(weight, mask, form).nbytes / weight.numel() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "block:1x4", "block:4x1", "block:2x2"])
def test_kernels_accept_and_prepare(with_instructions, pattern):
    rule = parse_pattern(pattern)
    weight = torch.randn(32, 64)
    mask = rule.project(weight.abs(), None if rule.fixed_density else 0.25)
    sparse = problem(weight * mask, mask, rule)
    panel, pair = KERNELS
    assert panel.precision == pair.precision == "bf16"
    assert panel.accepts(sparse)
    assert pair.accepts(sparse) == (pattern in ("block:1x4", "block:2x2"))
    x = torch.randn(40, 64)
    wanted = F.linear(x, weight * mask)
    for kernel in (panel, pair):
        error = (kernel.pack(sparse)(x, None, "none") - wanted).norm()
        assert float(error / wanted.norm()) < 2.0**-8


def test_a_nearly_full_weight_goes_in_pairs(with_instructions):
    weight, mask = random_layer(32, 64, 0.9)
    assert KERNELS[1].accepts(problem(weight, mask, parse_pattern("unstructured")))


def test_offered_only_where_the_cpu_has_the_instruction(monkeypatch):
    weight, mask = random_layer(32, 64, 1.0)
    sparse = problem(weight, mask, parse_pattern("unstructured"))
    names = {"bf16_panel", "bf16_pair"}
    for active, extensions in (("avx512", ("avx512vnni",)), ("avx2", ("avx512bf16",))):
        monkeypatch.setattr(bf16, "active_kernels", lambda active=active: active)
        monkeypatch.setattr(bf16, "available_extensions", lambda extensions=extensions: extensions)
        assert not names & {
            kernel.name for kernel in kernels_for("linear", replace(sparse, precision="bf16"))
        }
    assert set(available_extensions()) <= {"avx512vnni", "avx512bf16", "avx512vbmi2"}


def test_compile_offers_it_where_bf16_is_allowed(with_instructions):
    weight, mask = random_layer(32, 64, 0.9)
    sparse = problem(weight, mask, parse_pattern("unstructured"))
    names = {"bf16_panel", "bf16_pair"}
    assert names <= {
        kernel.name for kernel in kernels_for("linear", replace(sparse, precision="bf16"))
    }
    assert not names & {kernel.name for kernel in kernels_for("linear", sparse)}
    model = nn.Sequential(nn.Linear(64, 32))
    gossamer.sparsify(model, sparsity=0.5)
    fast = gossamer.compile(model, tokens=(33,), precision="bf16", kernel="bf16_panel")
    assert {row.kernel for row in gossamer.explain(fast)} == {"bf16_panel"}
    x = torch.randn(33, 64)
    with torch.inference_mode():
        assert float((fast(x) - model(x)).norm() / model(x).norm()) < 2.0**-8


def test_wrong_options_are_refused():
    weight, mask = random_layer(8, 16, 0.5)
    with pytest.raises(KernelError, match="form must be 'panel' or 'pair', got 'quad'"):
        packed(weight, mask, "quad")
    with pytest.raises(KernelError, match="float32"):
        packed(weight.double(), mask)
    with pytest.raises(InputError, match="last dimension of x must be 16"):
        packed(weight, mask)(torch.randn(3, 15))


def test_binding_refuses_what_it_cannot_check_later():
    values, bits = np.ones(3, np.float32), np.array([[7]], np.uint8)
    assert _native.pack_bf16(values, bits, 1, 3, "reference", "pair").kept == 3
    for arguments, message in (
        ((values, bits, 1, 3, "reference", "quad"), "form must be 'panel' or 'pair', got 'quad'"),
        ((values, np.array([[3]], np.uint8), 1, 3, "reference", "panel"), "mask_bits"),
        ((values, bits, 1, 2, "reference", "panel"), "beyond the last column"),
        ((values, bits, 1, 3, "sse9", "panel"), "sse9"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.pack_bf16(*arguments)
    with pytest.raises(TypeError):
        _native.pack_bf16(values.astype(np.float64), bits, 1, 3, "reference", "panel")
