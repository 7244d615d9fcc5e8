import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError, KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import Problem, _native
from gossamer.ops.kernels import available_kernels
from gossamer.ops.linear.few import DTYPES, KERNELS, pack_few
from gossamer.patterns import parse_pattern

NM = [(1, 1), (1, 4), (2, 4), (2, 6), (2, 8), (3, 10), (4, 16), (2, 16), (5, 20), (4, 32)]
EPS = torch.finfo(torch.float32).eps


def problem(weight, mask, pattern):
    return Problem(SparseMatrix.from_dense(weight, mask, pattern))


def random_layer(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    return torch.randn(rows, columns, generator=generator) * mask, mask


def nm_layer(rows, groups, n, m, seed=0):
    weight, _ = random_layer(rows, groups * m, 1.0, seed)
    mask = parse_pattern(f"{n}:{m}").project(weight.abs())
    return weight * mask, mask


def packed(weight, mask, form="bitmask", dtype="fp32", group=None, **options):
    matrix = SparseMatrix.from_dense(weight, mask)
    return pack_few(matrix, form=form, dtype=dtype, group=group, **options)


def stored_weight(layer):
    """What the layer multiplies with: its answer to every unit vector."""
    return layer(torch.eye(layer.shape[1])).T.contiguous()


def rounding_bound(weight, dtype):
    """Half a step: of the value itself (bf16), of the largest one that shares the scale."""
    largest = weight.abs().amax(1, keepdim=True) if weight.numel() else weight
    return {
        "fp32": torch.zeros_like(weight),
        "bf16": weight.abs() / 256,
        "int8": (largest / 127 * 0.5001).expand_as(weight),
        "int4": (largest / 7 * 0.51 + largest / 256).expand_as(weight),
    }[dtype]


def check(weight, mask, x, bias=None, activation="none", dtype="fp32", **options):
    layer = packed(weight, mask, dtype=dtype, **options)
    stored = stored_weight(layer)
    assert bool(((stored - weight).abs() <= rounding_bound(weight, dtype)).all())
    y = layer(x, bias, activation)
    wanted = F.linear(x.double(), stored.double(), None if bias is None else bias.double())
    functions = {"none": lambda v: v, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}
    wanted = functions[activation](wanted)
    scale = F.linear(x.abs().double(), stored.abs().double())
    scale = scale + (0 if bias is None else bias.abs().double()) + 1e-30
    terms = max(int(mask.sum(1).max()) if mask.numel() else 0, 1) + 1
    bound = scale * EPS * (3 + terms**0.5)  # one rounding more than fp32: the scale
    bound = bound + (scale * 4e-7 if activation in ("gelu", "silu") else 0)
    assert y.shape == wanted.shape
    assert y.dtype is torch.float32
    assert bool(((y.double() - wanted).abs() <= bound).all())


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["bitmask", "indexed"])
@pytest.mark.parametrize("density", [0.0, 0.005, 0.1, 0.5, 1.0])
def test_any_mask(kernels, form, dtype, density):
    for rows, columns in ((0, 5), (5, 0), (1, 1), (7, 31), (17, 33), (9, 700)):
        weight, mask = random_layer(rows, columns, density)
        check(weight, mask, torch.randn(1, columns), torch.randn(rows), form=form, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), NM)
def test_every_nm_pattern(kernels, dtype, n, m):
    for rows, groups in ((0, 2), (3, 0), (1, 1), (8, 5), (17, 13)):
        weight, mask = nm_layer(rows, groups, n, m)
        x, bias = torch.randn(1, groups * m), torch.randn(rows)
        check(weight, mask, x, bias, form="nm", dtype=dtype, group=(n, m))


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 18, 40])
@pytest.mark.parametrize("form", ["bitmask", "indexed", "nm"])
def test_every_token_count(kernels, form, tokens):
    weight, mask = nm_layer(19, 21, 2, 8)
    group = (2, 8) if form == "nm" else None
    x = torch.randn(tokens, 168)
    for dtype in DTYPES:
        check(weight, mask, x, torch.randn(19), form=form, dtype=dtype, group=group)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("form", ["bitmask", "indexed", "nm"])
def test_fused_activations(kernels, form, activation):
    weight, mask = nm_layer(40, 16, 2, 4)
    x = torch.randn(12, 64) * torch.logspace(-3, 1, 12).unsqueeze(1)
    group = (2, 4) if form == "nm" else None
    check(weight, mask, x, torch.randn(40), activation, form=form, group=group)


@pytest.mark.parametrize("form", ["bitmask", "indexed"])
def test_one_full_row_and_far_apart_columns(kernels, form):
    mask = torch.zeros(5, 3000, dtype=torch.bool)
    mask[1] = True
    mask[2, ::300] = True
    mask[3, [0, 255, 256, 511, 2999]] = True
    mask[4, 2999] = True
    weight = torch.randn(5, 3000) * mask
    check(weight, mask, torch.randn(3, 3000), form=form)
    matrix = packed(weight, mask, form).unpack()
    assert torch.equal(matrix.values, weight[mask])
    assert torch.equal(matrix.mask(), mask)


@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 210),
    tokens=st.integers(0, 20),
    density=st.floats(0, 1),
    form=st.sampled_from(["bitmask", "indexed"]),
    dtype=st.sampled_from(DTYPES),
    scale_group=st.sampled_from([8, 32, 64]),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_equals_the_dense_product(
    rows, columns, tokens, density, form, dtype, scale_group
):
    weight, mask = random_layer(rows, columns, density)
    x = torch.randn(tokens, columns)
    check(weight, mask, x, form=form, dtype=dtype, scale_group=scale_group)


@pytest.mark.parametrize("form", ["bitmask", "indexed", "nm"])
def test_unpack_gives_back_what_was_packed(kernels, form):
    weight, mask = nm_layer(21, 40, 2, 8)
    weight[mask] = torch.where(torch.rand(int(mask.sum())) < 0.2, 0.0, weight[mask])  # kept zeros
    group = (2, 8) if form == "nm" else None
    layer = packed(weight, mask, form, group=group)
    assert layer.is_lossless
    matrix = layer.unpack()
    assert torch.equal(matrix.values, weight[mask])
    assert torch.equal(matrix.mask(), mask)
    assert not packed(weight, mask, form, "bf16", group).is_lossless


def test_bf16_rounds_to_nearest_even(kernels):
    weight = torch.tensor([[1.00390625, 1.01171875, -1.00390625]])  # halfway between neighbours
    mask = torch.ones_like(weight, dtype=torch.bool)
    for form in ("bitmask", "indexed"):
        stored = stored_weight(packed(weight, mask, form, "bf16"))
        assert torch.equal(stored, weight.bfloat16().float())


def test_packed_bytes_are_the_values_and_their_positions():
    weight, mask = random_layer(256, 1024, 0.5)
    kept, per_row = int(mask.sum()), 257 * 8
    assert packed(weight, mask).nbytes <= 4 * kept + mask.numel() // 8 + per_row + 64
    assert (
        packed(weight, mask, dtype="int8").nbytes
        <= kept + mask.numel() // 8 + 256 * 4 + per_row + 64
    )
    weight, mask = nm_layer(256, 128, 2, 8)
    assert packed(weight, mask, "nm", group=(2, 8)).nbytes <= mask.sum() * (4 + 3 / 8) + 100


def test_strided_activations():
    weight, mask = random_layer(24, 48, 0.3)
    wide = torch.randn(5, 6, 96)
    for form in ("bitmask", "indexed"):
        for x in (wide[..., :48], wide[..., ::2], wide.transpose(0, 1)[..., 48:], wide[0, 0, :48]):
            check(weight, mask, x, torch.randn(24), form=form)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["bitmask", "indexed", "nm"])
def test_threads_do_not_change_a_bit(form, dtype):
    weight, mask = nm_layer(1031, 256, 2, 4)  # large enough for two threads even in int4
    layer = packed(weight, mask, form, dtype, (2, 4) if form == "nm" else None)
    before = torch.get_num_threads()
    try:
        for tokens in (1, 5, 16):
            x = torch.randn(tokens, 1024)
            torch.set_num_threads(1)
            one = layer(x)
            torch.set_num_threads(2)
            assert torch.equal(one, layer(x))
    finally:
        torch.set_num_threads(before)


def test_calls_from_eight_threads_agree():
    weight, mask = random_layer(300, 200, 0.2)
    layer, x = packed(weight, mask, "indexed"), torch.randn(7, 200)
    wanted, results = layer(x), []
    workers = [
        threading.Thread(target=lambda: results.extend(layer(x) for _ in range(20)))
        for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(results) == 160
    assert all(torch.equal(result, wanted) for result in results)


def test_kernels_accept_what_they_can_run():
    weight, mask = nm_layer(16, 8, 2, 8)
    for pattern in ("2:8", "unstructured"):
        sparse = problem(weight, mask, parse_pattern(pattern))
        accepted = [kernel for kernel in KERNELS if kernel.accepts(sparse)]
        assert any("few/nm" in kernel.name for kernel in accepted) is (pattern == "2:8")
        for kernel in accepted:
            run = kernel.pack(sparse)
            assert run.kernel == kernel.name
            y = run(torch.randn(2, 64), None, "none")
            assert y.shape == (2, 16)
    precisions = {kernel.name: kernel.precision for kernel in KERNELS}
    assert len(precisions) == len(KERNELS)
    assert precisions["few/bitmask"] == "fp32"
    assert precisions["few/nm-int4"] == "int4"


def test_permutation_serves_any_number_of_tokens_where_it_is_one_instruction(monkeypatch):
    weight, mask = nm_layer(5, 2, 2, 8)
    sparse = problem(weight, mask, parse_pattern("2:8"))
    permute = next(kernel for kernel in KERNELS if kernel.name == "permute")
    assert permute.max_tokens is None
    for kernels, offered in (("avx512", True), ("avx2", False), ("reference", False)):
        monkeypatch.setattr("gossamer.ops.linear.few.active_kernels", lambda name=kernels: name)
        assert permute.is_offered() is offered
    assert permute.accepts(sparse)
    x = torch.randn(40, 16)
    packed = permute.pack(sparse)
    assert packed.kernel == "permute"
    torch.testing.assert_close(packed(x), x @ weight.T)


def test_wrong_options_are_refused():
    weight, mask = nm_layer(8, 2, 2, 8)
    for options, found in (
        ({"form": "csr"}, "csr"),
        ({"dtype": "fp16"}, "fp16"),
        ({"form": "nm"}, "group"),
        ({"form": "bitmask", "group": (2, 8)}, "group"),
        ({"form": "nm", "group": (1, 8)}, "at most 1 of 8 kept; row 0, columns from 0, keeps 2"),
        ({"form": "nm", "group": (2, 33)}, "M=33"),
        ({"form": "nm", "group": (3, 2)}, "N=3"),
        ({"dtype": "int4", "scale_group": 12}, "12"),
    ):
        with pytest.raises(KernelError, match=found):
            packed(weight, mask, **options)
    weight[mask] = torch.nan
    with pytest.raises(KernelError, match="finite"):
        packed(weight, mask, dtype="int8")
    with pytest.raises(KernelError, match="float32"):
        packed(weight.double(), mask)
    with pytest.raises(InputError, match="packed linear"):
        packed(weight, mask)(torch.randn(2, 15))


def test_binding_refuses_bad_arguments():
    values, bits = np.ones(3, np.float32), np.array([[7]], np.uint8)
    good = {"form": "bitmask", "dtype": "fp32", "scale_group": 32, "slots": 0, "window": 0}
    _native.pack_few(values, bits, 1, 3, "reference", **good)
    for change in ({"form": "x"}, {"dtype": "x"}, {"scale_group": 0}, {"form": "nm"}):
        with pytest.raises(ValueError, match=r"must|needs"):
            _native.pack_few(values, bits, 1, 3, "reference", **{**good, **change})
    with pytest.raises(ValueError, match="mask_bits"):
        _native.pack_few(values, bits, 1, 2, "reference", **good)
    with pytest.raises(TypeError):
        _native.pack_few(values.astype(np.float64), bits, 1, 3, "reference", **good)
