import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops.kernels import available_kernels
from gossamer.ops.linear.few_int import DTYPES, pack_few_int, pack_few_int_offsets

EPS = torch.finfo(torch.float32).eps
STEP = 64


def random_layer(rows, columns, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    return torch.randn(rows, columns, generator=generator) * mask, mask


def packed(weight, mask, dtype, **options):
    return pack_few_int(SparseMatrix.from_dense(weight, mask), dtype, **options)


def quantised(x):
    """X as the kernel sees it: 64 columns share a scale."""
    columns = x.shape[1]
    steps = F.pad(x, (0, -columns % STEP)).reshape(len(x), -1, STEP)
    largest = steps.abs().amax(2, keepdim=True)
    # Divided as the kernel divides: torch computes 127 / largest as 127 times a reciprocal.
    inverse = torch.where(largest > 0, torch.full_like(largest, 127) / largest, 0.0)
    restored = (steps * inverse).round().double() * (largest.double() / 127)
    return restored.reshape(len(x), -1)[:, :columns]


def stored_weight(layer):
    """What the layer multiplies with: a unit vector is quantised without loss."""
    return layer(torch.eye(layer.shape[1])).T.contiguous()


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


def check(weight, mask, x, dtype, bias=None, activation="none", **options):
    layer = packed(weight, mask, dtype, **options)
    stored = stored_weight(layer).double()
    largest = weight.abs().amax(1, keepdim=True).double() if weight.numel() else weight.double()
    # int4 scales may clip the largest weight to 7/10, where that makes the whole error smaller.
    step = largest / 127 * 0.501 if dtype == "int8" else largest * 0.31
    assert bool(((stored - weight.double()).abs() <= step + 1e-12).all())
    wanted = F.linear(quantised(x), stored, None if bias is None else bias.double())
    wanted = {"none": lambda v: v, "silu": F.silu, "relu": F.relu}[activation](wanted)
    scale = F.linear(x.abs().double(), stored.abs()) + (0 if bias is None else bias.abs().double())
    y = layer(x, bias, activation)
    assert y.shape == wanted.shape
    assert bool(((y.double() - wanted).abs() <= scale * 40 * EPS + 1e-30).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("density", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 63), (17, 64), (33, 65), (40, 200)])
def test_any_mask_equals_float64(kernels, rows, columns, density, dtype):
    weight, mask = random_layer(rows, columns, density)
    for tokens in (1, 2, 3, 8, 9, 17, 65, 66):
        x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(tokens))
        check(weight, mask, x, dtype, torch.randn(rows), "silu" if tokens == 3 else "none")


def test_int4_scales_leave_less_error_than_the_largest_weight_would():
    weight, mask = random_layer(40, 64 * 6, 0.5)
    stored = stored_weight(packed(weight, mask, "int4"))
    groups = weight.reshape(40, -1, 64)
    scale = groups.abs().amax(2, keepdim=True) / 7
    plain = (groups / scale).round() * scale
    errors = (stored - weight).reshape(40, -1, 64).square().sum(2)
    assert bool((errors <= (plain - groups).square().sum(2) * 1.1).all())
    assert errors.sum() < 0.95 * (plain - groups).square().sum()


@pytest.mark.parametrize("highest", [1, 4, 7, -8])
def test_int4_keeps_weights_that_lie_on_the_levels_of_a_scale(kernels, highest):
    generator = torch.Generator().manual_seed(3)
    levels = torch.randint(-3, 4, (20, 200), generator=generator).clamp(-abs(highest), abs(highest))
    levels[:, ::64] = highest
    scales = torch.rand(20, 4, generator=generator).bfloat16().float().repeat_interleave(64, 1)
    weight = levels * scales[:, :200]
    stored = stored_weight(packed(weight, weight != 0, "int4"))
    torch.testing.assert_close(stored, weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_sizes(kernels, dtype):
    for rows, columns in ((0, 5), (5, 0)):
        weight, mask = random_layer(rows, columns, 1.0)
        y = packed(weight, mask, dtype)(torch.randn(2, columns))
        assert y.shape == (2, rows)
        assert not y.any()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 400),
    density=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    tokens=st.integers(1, 18),
    dtype=st.sampled_from(DTYPES),
    group=st.sampled_from([8, 32, 128, 1000]),
)
def test_random_sizes(rows, columns, density, tokens, dtype, group):
    weight, mask = random_layer(rows, columns, density, seed=rows * 401 + columns)
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(columns))
    check(weight, mask, x, dtype, scale_group=group)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_token(kernels, value):
    weight, mask = random_layer(20, 130, 0.5)
    x = torch.randn(3, 130)
    clean = packed(weight, mask, "int8")(x)
    x[1, 7] = value
    y = packed(weight, mask, "int8")(x)
    assert bool(y[1].isnan().all())
    assert torch.equal(y[[0, 2]], clean[[0, 2]])


def test_tiny_and_zero_activations_are_zero(kernels):
    weight, mask = random_layer(20, 130, 0.5)
    x = torch.stack([torch.zeros(130), torch.full((130,), 1e-42)])
    assert not packed(weight, mask, "int4")(x).any()


def test_bits_per_weight():
    weight, mask = random_layer(512, 1024, 0.5)
    half, full = packed(weight, mask, "int4"), packed(weight, torch.ones_like(mask), "int4")
    assert 8 * half.nbytes / weight.numel() < 3.42
    assert 8 * full.nbytes / weight.numel() < 4.3
    assert 8 * packed(weight, mask, "int8").nbytes / weight.numel() < 5.1


def test_refusals():
    weight, mask = random_layer(4, 8, 1.0)
    with pytest.raises(KernelError, match="dtype must be int8 or int4"):
        packed(weight, mask, "fp16")
    with pytest.raises(KernelError, match="scale_group must be positive"):
        packed(weight, mask, "int4", scale_group=0)
    weight[1, 1] = float("nan")
    with pytest.raises(KernelError, match="finite"):
        packed(weight, mask, "int8")


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 33), (17, 64), (33, 200), (40, 576)])
def test_offsets_equal_float64(kernels, rows, columns, group):
    generator = torch.Generator().manual_seed(columns)
    spans = -(-columns // group)
    codes = torch.randint(0, 16, (rows, columns), generator=generator)
    scales = torch.rand(rows, spans, generator=generator).half() / 8
    offsets = torch.randn(rows, spans, generator=generator).half()
    spread = [v.double().repeat_interleave(group, 1)[:, :columns] for v in (scales, offsets)]
    weight = codes.double() * spread[0] + spread[1]
    layer = pack_few_int_offsets(codes, scales, offsets, group)
    for tokens in (1, 2, 5, 9, 66):
        x = torch.randn(tokens, columns, generator=generator)
        wanted = F.linear(quantised(x), weight)
        scale = F.linear(x.abs().double(), codes.double() * spread[0] + spread[1].abs())
        assert bool(((layer(x).double() - wanted).abs() <= scale * 40 * EPS + 1e-30).all())
    assert layer.nnz == rows * columns


def test_refusals_of_offsets():
    codes, halves = torch.zeros(2, 64, dtype=torch.uint8), torch.ones(2, 2, dtype=torch.float16)
    with pytest.raises(KernelError, match="float16"):
        pack_few_int_offsets(codes, halves.float(), halves, 32)
    with pytest.raises(KernelError, match="group must be 32"):
        pack_few_int_offsets(codes, halves, halves, 48)
    with pytest.raises(KernelError, match="scales must have shape"):
        pack_few_int_offsets(codes, halves[:, :1], halves, 32)
    with pytest.raises(KernelError, match="at most 15"):
        pack_few_int_offsets(codes + 16, halves, halves, 32)
    with pytest.raises(KernelError, match="offsets must be finite"):
        pack_few_int_offsets(codes, halves, halves * float("inf"), 32)
