import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import Problem, _native
from gossamer.ops.kernels import available_kernels
from gossamer.ops.linear import pack_int8
from gossamer.ops.linear.int8 import KERNELS, LAYOUTS
from gossamer.patterns import parse_pattern

SETS = available_kernels()


def problem(weight, mask, pattern):
    return Problem(SparseMatrix.from_dense(weight, mask, pattern))


def random_layer(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    return torch.randn(rows, columns, generator=generator) * mask, mask


def packed(weight, mask, layout="panel", bits=None, scale=None):
    return pack_int8(SparseMatrix.from_dense(weight, mask), layout, bits, scale)


def largest(matrix):
    return matrix.abs().amax(1, keepdim=True) if matrix.numel() else torch.zeros(len(matrix), 1)


def integers(weight, x, bits, scale=None):
    """The specification in float64: product of the quantised numbers, and their scales."""
    top_w, top_x, limit = largest(weight), largest(x), 2 ** (bits - 1) - 1
    scale_w = torch.where(top_w > 0, (top_w.double() / 127).float(), torch.ones(()))
    # Quotients of two tensors: torch turns `number / tensor` into a product with the reciprocal.
    inverse_w = torch.full_like(top_w, 127, dtype=torch.float64) / top_w.double()
    q_w = torch.where(top_w > 0, weight.double() * inverse_w, 0.0).round()
    inverse = torch.where(top_x >= 2.0**-120, torch.full_like(top_x, limit) / top_x, 0.0)
    scale_x = torch.where(top_x >= 2.0**-120, top_x / limit, 1.0)
    if scale is not None:
        scale_x = torch.full_like(top_x, scale)
        inverse = torch.ones_like(top_x) / scale_x
    q_x = (x * inverse).clamp(-limit, limit).round().double()
    return q_x @ q_w.T, scale_x, scale_w


def check(weight, mask, x, bias=None, activation="none", layout="panel", bits=7, scale=None):
    """Integers must be exact: what is left are the roundings of the scales, bias and activation."""
    y = packed(weight, mask, layout, bits, scale)(x, bias, activation)
    sums, scale_x, scale_w = integers(weight, x, bits, scale)
    product = sums * scale_x.double() * scale_w.double().T
    wanted = product + (0 if bias is None else bias.double())
    size = product.abs() + (0 if bias is None else bias.abs().double())
    functions = {"none": lambda v: v, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}
    bound = size * 4 * torch.finfo(torch.float32).eps + 1e-35
    if activation in ("gelu", "silu"):
        bound = bound * 2 + size * 4e-7
    assert y.shape == wanted.shape
    assert y.dtype is torch.float32
    assert bool(((y.double() - functions[activation](wanted)).abs() <= bound).all())


@pytest.fixture(params=SETS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


both_layouts = pytest.mark.parametrize("layout", LAYOUTS)
both_bits = pytest.mark.parametrize("bits", [7, 8])


@both_layouts
@both_bits
@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 5, 8, 20, 21, 31, 32, 33, 40, 41, 63, 64, 65, 130])
def test_every_token_remainder(kernels, layout, bits, tokens):
    weight, mask = random_layer(37, 101, 0.3)
    check(weight, mask, torch.randn(tokens, 101), torch.randn(37), layout=layout, bits=bits)


@both_layouts
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 63, 64, 65, 128, 129, 513])
@pytest.mark.parametrize("density", [0.03, 0.5])
def test_every_row_remainder(kernels, layout, rows, density):
    weight, mask = random_layer(rows, 50, density)
    check(weight, mask, torch.randn(19, 50), torch.randn(rows), layout=layout)


@both_layouts
@pytest.mark.parametrize("columns", [0, 1, 2, 3, 4, 5, 7, 8, 9, 383, 384, 385, 767, 769, 1000])
@pytest.mark.parametrize("density", [0.03, 0.5])
def test_every_column_remainder(kernels, layout, columns, density):
    weight, mask = random_layer(33, columns, density)
    check(weight, mask, torch.randn(21, columns), layout=layout)


@both_layouts
@both_bits
@pytest.mark.parametrize("density", [0.0, 1e-3, 1.0])
def test_none_few_and_all_kept(kernels, layout, bits, density):
    weight, mask = random_layer(65, 130, density)
    check(weight, mask, torch.randn(70, 130), torch.randn(65), layout=layout, bits=bits)


@both_layouts
def test_one_full_row(kernels, layout):
    weight, mask = random_layer(40, 900, 0.0)
    mask[7] = True
    weight[7] = torch.randn(900)
    check(weight, mask, torch.randn(70, 900), layout=layout)


@both_layouts
@both_bits
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_largest_products_do_not_saturate(kernels, layout, bits, sign):
    # Every |w| is 127 and every |x| the limit: 16-bit sums would overflow if any were unbounded.
    signs = torch.ones(16, 800) * sign if sign else torch.randn(16, 800).sign()
    mask = torch.ones(16, 800, dtype=torch.bool)
    x = torch.cat([torch.ones(33, 800), -torch.ones(33, 800), signs[:1].expand(5, 800)]) * 3
    check(signs, mask, x, layout=layout, bits=bits)


@both_layouts
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_fused_activations(kernels, layout, activation):
    weight, mask = random_layer(40, 64, 0.4)
    x = torch.randn(50, 64) * torch.logspace(-3, 1, 50).unsqueeze(1)
    check(weight, mask, x, torch.randn(40), activation, layout)


@both_layouts
@both_bits
def test_static_scale_clamps(kernels, layout, bits):
    weight, mask = random_layer(24, 200, 0.4)
    layer = packed(weight, mask, layout, bits, 0.01)
    assert layer.activation_scale == pytest.approx(0.01)
    check(weight, mask, torch.randn(40, 200), torch.randn(24), "none", layout, bits, 0.01)
    check(weight, mask, torch.randn(40, 200) * 1e30, None, "none", layout, bits, 0.01)


@both_layouts
@pytest.mark.parametrize("scale", [None, 0.02])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_tokens_that_are_not_finite_give_nan(kernels, layout, scale, activation):
    weight, mask = random_layer(70, 133, 0.3)
    mask[5] = False  # a row without weights, too
    x, bias = torch.randn(70, 133), torch.randn(70)
    clean = packed(weight, mask, layout, 7, scale)(x, bias, activation)
    bad = {0: torch.nan, 13: torch.inf, 14: -torch.inf, 69: torch.nan}
    for column, (token, value) in zip((0, 5, 100, 132), bad.items(), strict=True):
        x[token, column] = value
    y = packed(weight, mask, layout, 7, scale)(x, bias, activation)
    is_bad = torch.zeros(70, dtype=torch.bool)
    is_bad[list(bad)] = True
    assert bool(y[is_bad].isnan().all())
    assert torch.equal(y[~is_bad], clean[~is_bad])


@both_layouts
def test_tokens_of_zeros_give_the_bias(kernels, layout):
    weight, mask = random_layer(30, 50, 0.5)
    x, bias = torch.randn(9, 50), torch.randn(30)
    x[3] = 0.0
    x[4] = -0.0
    x[5] = 1e-38
    y = packed(weight, mask, layout)(x, bias, "relu")
    assert torch.equal(y[3:6], F.relu(bias).expand(3, 30))


@both_layouts
def test_extreme_but_finite_numbers(kernels, layout):
    weight, mask = random_layer(20, 40, 0.5)
    for factor in (1e-35, 1e37):
        check(weight, mask, torch.randn(10, 40) * factor, layout=layout)
        check(weight * factor, mask, torch.randn(10, 40), layout=layout)


@both_layouts
@both_bits
def test_every_instruction_set_gives_the_same_bits(monkeypatch, layout, bits):
    weight, mask = random_layer(300, 900, 0.2)
    x, bias, results = torch.randn(101, 900), torch.randn(300), []
    for name in SETS:
        monkeypatch.setenv("GOSSAMER_KERNELS", name)
        results.append(packed(weight, mask, layout, bits)(x, bias, "relu"))
    assert all(torch.equal(result, results[0]) for result in results)


@both_layouts
def test_layouts_tiles_and_threads_do_not_change_a_bit(kernels, layout):
    weight, mask = random_layer(300, 500, 0.3)
    x = torch.randn(200, 500)
    wanted = packed(weight, mask, "panel", 7)(x)
    layer, before = packed(weight, mask, layout, 7), torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for tokens in (3, 64, 130, 200):
                assert torch.equal(layer(x[:tokens]), wanted[:tokens])
    finally:
        torch.set_num_threads(before)


@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 420),
    tokens=st.integers(0, 70),
    density=st.floats(0, 1),
    layout=st.sampled_from(LAYOUTS),
    bits=st.sampled_from([7, 8]),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(rows, columns, tokens, density, layout, bits, seed):
    weight, mask = random_layer(rows, columns, density, seed)
    check(weight, mask, torch.randn(tokens, columns), torch.randn(rows), layout=layout, bits=bits)


@both_layouts
def test_strided_and_higher_dimensional_activations(layout):
    weight, mask = random_layer(24, 48, 0.3)
    wide = torch.randn(5, 6, 96)
    layer = packed(weight, mask, layout)
    for x in (wide[..., :48], wide[..., ::2], wide.transpose(0, 1)[..., 48:], wide[0, 0, :48]):
        assert torch.equal(layer(x), layer(x.clone(memory_format=torch.contiguous_format)))


@both_layouts
@both_bits
@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_error_on_gaussian_data(layout, bits, density):
    # A step of the scale max / limit is uniform in +-1/2 around the value: standard error
    # max / (limit sqrt 12). K Gaussian values reach about sqrt(2 ln K) standard deviations.
    weight, mask = random_layer(256, 768, density)
    x = torch.randn(64, 768)
    reach_x, reach_w = largest(x).mean(), (largest(weight) / 1.0).mean()
    expected = math.hypot(reach_x / (2 ** (bits - 1) - 1), reach_w / 127) / math.sqrt(12)
    wanted = x.double() @ weight.double().T
    error = (packed(weight, mask, layout, bits)(x).double() - wanted).norm() / wanted.norm()
    assert float(error) < 1.1 * expected
    assert expected < (0.021 if bits == 7 else 0.0135)


def test_properties_visible_from_python():
    weight, mask = random_layer(16, 32, 0.5)
    layer = packed(weight, mask, "quad", 8)
    assert (layer.kernel, layer.activation_bits, layer.activation_scale) == ("int8_quad", 8, None)
    assert layer.nnz == int(mask.sum())
    assert layer.shape == (16, 32)
    assert not layer.is_lossless
    with pytest.raises(ValueError, match="does not keep"):
        layer.unpack()
    assert packed(weight, mask).activation_bits in (7, 8)


def test_default_bits(monkeypatch):
    weight, mask = random_layer(16, 32, 0.5)
    for name, bits in (("reference", 8), ("avx2", 7)):
        if name in SETS:
            monkeypatch.setenv("GOSSAMER_KERNELS", name)
            assert packed(weight, mask).activation_bits == bits


@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "16:2:8", "block:1x4", "block:4x1"])
def test_kernels_accept_and_prepare(pattern):
    rule = parse_pattern(pattern)
    weight = torch.randn(32, 64)
    mask = rule.project(weight.abs(), None if rule.fixed_density else 0.25)
    sparse = problem(weight * mask, mask, rule)
    panel, quad = KERNELS
    assert panel.precision == quad.precision == "int8"
    assert panel.accepts(sparse)
    assert quad.accepts(sparse) == (pattern == "block:1x4")
    x = torch.randn(40, 64)
    for kernel in (panel, quad):
        run = kernel.pack(sparse)
        error = (run(x, None, "none") - F.linear(x, weight * mask)).norm()
        assert float(error / F.linear(x, weight * mask).norm()) < 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "pairs"}, "layout must be 'panel' or 'quad', got 'pairs'"),
        ({"activation_bits": 6}, "activation_bits must be 7, 8 or None, got 6"),
        ({"activation_scale": 0.0}, "activation_scale must be between"),
        ({"activation_scale": -1.0}, "activation_scale must be between"),
        ({"activation_scale": math.nan}, "activation_scale must be between"),
        ({"matrix": SparseMatrix.from_dense(torch.ones(1, 1 << 18))}, "at most 131072 columns"),
    ],
)
def test_wrong_options_are_refused(change, message):
    weight, mask = random_layer(8, 16, 0.5)
    arguments = {"matrix": SparseMatrix.from_dense(weight, mask)} | change
    with pytest.raises(KernelError, match=message):
        pack_int8(**arguments)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(value):
    weight, mask = random_layer(8, 16, 0.5)
    weight[mask] = value
    with pytest.raises(KernelError, match="finite"):
        packed(weight, mask)


def test_binding_refuses_what_it_cannot_check_later():
    values, bits = np.ones(3, np.float32), np.array([[7]], np.uint8)

    def pack_native(values=values, bits=bits, columns=3, layout="panel", **options):
        return _native.pack_int8(values, bits, 1, columns, "reference", layout, **options)

    assert pack_native().activation_bits == 8
    for wrong, message in (
        ({"layout": "row"}, "layout"),
        ({"activation_bits": 9}, "activation_bits"),
        ({"activation_scale": -1.0}, "activation_scale"),
        ({"activation_scale": math.nan}, "activation_scale"),
        ({"values": np.array([1, np.inf, 2], np.float32)}, "finite"),
        ({"bits": np.array([[3]], np.uint8)}, "mask_bits"),
        ({"columns": 1 << 18}, "131072"),
    ):
        with pytest.raises(ValueError, match=message):
            pack_native(**wrong)
    with pytest.raises(TypeError):
        pack_native(values=values.astype(np.float64))
