"""The native convolution against a float64 oracle."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError, KernelError
from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.bits import pack_bits
from gossamer.ops.conv import ConvSettings, PackedConv, why_not
from gossamer.ops.kernels import available_kernels

ROUNDOFF = 2.0**-24


def make(conv, density=0.3, seed=0):
    """A packed convolution, its dense weight and the mask."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(conv.weight_shape, generator=generator)
    mask = torch.rand(conv.matrix_shape, generator=generator) < density
    weight = weight * mask.view(weight.shape)
    return PackedConv(SparseMatrix.from_dense(weight.flatten(1), mask), conv), weight


def assert_close(packed, weight, x, bias=None, activation="none"):
    s = packed.settings
    arguments = (s.stride, s.even_padding(), s.dilation, s.groups)
    wide = torch.zeros(s.out_channels) if bias is None else bias
    expected = F.conv2d(x.double(), weight.double(), wide.double(), *arguments)
    magnitude = F.conv2d(x.double().abs(), weight.double().abs(), wide.double().abs(), *arguments)
    if activation == "relu":
        expected = expected.relu()
    actual = packed(x, bias, activation)
    assert actual.dtype is torch.float32
    assert actual.shape == expected.shape
    terms = weight[0].numel() + 4
    assert bool(((actual - expected).abs() <= terms * ROUNDOFF * magnitude).all())


@st.composite
def convs(draw):
    small = st.sampled_from
    groups = draw(small([1, 1, 1, 2, 3]))
    depthwise = draw(st.booleans()) and groups == 3
    channels = groups * (1 if depthwise else draw(st.integers(1, 9)))
    kernel = (draw(small([1, 1, 3, 3, 5])), draw(small([1, 1, 3, 3, 5, 2])))
    return ConvSettings(
        channels,
        groups * draw(st.integers(1, 20)),
        kernel,
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        (draw(st.integers(0, 3)), draw(st.integers(0, 3))),
        (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
        groups,
    )


@settings(max_examples=150, deadline=None)
@given(
    convs(),
    st.tuples(st.integers(1, 20), st.integers(1, 40)),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_random_convolutions(conv, extra, images, density, has_bias, seed):
    spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    height, width = (size + span for size, span in zip(extra, spans, strict=True))
    packed, weight = make(conv, density, seed)
    x = torch.randn(images, conv.in_channels, height, width)
    bias = torch.randn(conv.out_channels) if has_bias else None
    assert_close(packed, weight, x, bias, "relu" if seed % 2 else "none")


CASES = {
    "cifar": (ConvSettings(16, 16, (3, 3), padding=(1, 1)), (32, 32)),
    "cifar end": (ConvSettings(64, 64, (3, 3), padding=(1, 1)), (8, 8)),
    "imagenet end": (ConvSettings(40, 130, (3, 3), padding=(1, 1)), (7, 7)),
    "stride 2": (ConvSettings(20, 33, (3, 3), (2, 2), (1, 1)), (15, 17)),
    "pointwise": (ConvSettings(130, 140, (1, 1)), (14, 14)),
    "pointwise stride 2": (ConvSettings(9, 20, (1, 1), (2, 2)), (9, 11)),
    "stem": (ConvSettings(3, 24, (7, 7), (2, 2), (3, 3)), (33, 33)),
    "stride 4": (ConvSettings(3, 8, (11, 11), (4, 4), (2, 2)), (31, 40)),
    "dilated": (ConvSettings(5, 8, (3, 3), padding=(2, 2), dilation=(2, 2)), (10, 70)),
    "rows wider than a tile": (ConvSettings(4, 8, (3, 3), padding=(1, 1)), (5, 150)),
    "depthwise": (ConvSettings(20, 20, (3, 3), padding=(1, 1), groups=20), (9, 9)),
    "grouped": (ConvSettings(12, 300, (3, 3), padding=(1, 1), groups=2), (6, 10)),
    "one pixel": (ConvSettings(3, 5, (1, 1)), (1, 1)),
    "same": (ConvSettings(4, 6, (3, 5), padding="same"), (6, 9)),
    "very large kernel": (ConvSettings(2, 3, (31, 31), padding=(15, 15)), (32, 33)),
}


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("case", CASES)
def test_every_kernel_set(case, kernels, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    conv, image = CASES[case]
    packed, weight = make(conv, 0.2)
    x = torch.randn(2, conv.in_channels, *image)
    assert_close(packed, weight, x, torch.randn(conv.out_channels), "relu")


def test_layouts_of_inputs():
    packed, weight = make(ConvSettings(6, 10, (3, 3), padding=(1, 1)))
    x = torch.randn(3, 6, 9, 11)
    assert_close(packed, weight, x.contiguous(memory_format=torch.channels_last))
    assert_close(packed, weight, x.transpose(2, 3))
    assert_close(packed, weight, torch.randn(6, 6, 9, 11)[::2])
    assert_close(packed, weight, torch.randn(1, 1, 9, 11).expand(2, 6, 9, 11))
    assert torch.equal(packed(x[0]), packed(x)[0])


def test_rows_without_weights_and_one_full_row():
    conv = ConvSettings(8, 20, (3, 3), padding=(1, 1))
    mask = torch.zeros(conv.matrix_shape, dtype=torch.bool)
    mask[7] = True
    weight = torch.randn(conv.weight_shape) * mask.view(conv.weight_shape)
    packed = PackedConv(SparseMatrix.from_dense(weight.flatten(1), mask), conv)
    bias = torch.randn(20)
    x = torch.randn(1, 8, 12, 12)
    assert_close(packed, weight, x, bias)
    assert torch.equal(packed(x, bias)[0, 3], bias[3].expand(12, 12))


def test_threads_give_the_same_bits():
    packed, _ = make(ConvSettings(24, 300, (3, 3), padding=(1, 1)))
    before = torch.get_num_threads()
    try:
        for images in (1, 3):
            x = torch.randn(images, 24, 14, 14)
            results = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results.append(packed(x))
            assert torch.equal(*results)
    finally:
        torch.set_num_threads(before)


def test_sizes_of_images_are_packed_once_and_the_last_ones_kept():
    packed, weight = make(ConvSettings(3, 4, (3, 3)))
    for size in range(3, 15):
        assert_close(packed, weight, torch.randn(1, 3, size, 5))
    assert len(packed._by_size) == 8
    assert packed.nbytes((14, 5)) > 0


def test_not_a_number_stays_where_it_is_seen():
    packed, weight = make(ConvSettings(1, 3, (3, 3), padding=(1, 1)), density=1.0)
    x = torch.randn(1, 1, 16, 16)
    x[0, 0, 0, 15] = float("nan")
    y = packed(x)
    expected = F.conv2d(x, weight, None, 1, 1)
    assert torch.equal(y.isnan(), expected.isnan())


def test_other_activations():
    packed, weight = make(ConvSettings(4, 5, (3, 3)))
    x = torch.randn(2, 4, 9, 9)
    plain = F.conv2d(x, weight)
    torch.testing.assert_close(packed(x, None, "gelu"), F.gelu(plain), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed(x, None, "silu"), F.silu(plain), rtol=1e-5, atol=1e-5)


def test_compiled_graphs_see_an_op():
    packed, _ = make(ConvSettings(4, 6, (3, 3), (2, 2), (1, 1)))
    x, bias = torch.randn(2, 4, 9, 11), torch.randn(6)
    seen = (packed.settings.numbers(), packed.kernel)
    arguments = (x, bias, packed.handle, *seen, "relu")
    torch.library.opcheck(torch.ops.gossamer.packed_conv.default, arguments)
    graph = torch.compile(lambda x: packed(x, bias), backend="eager", fullgraph=True)
    assert torch.equal(graph(x), packed(x, bias))
    with pytest.raises(KernelError, match="no longer exists"):
        torch.ops.gossamer.packed_conv(x, bias, 1, *seen, "none")


@pytest.mark.parametrize(
    ("x", "bias", "activation", "message"),
    [
        (torch.randn(1, 3, 8, 8), None, "none", r"must be \[N, 4, H, W\] .* got \[1, 3, 8, 8\]"),
        (torch.randn(4, 8), None, "none", r"got \[4, 8\]"),
        (torch.randn(1, 4, 8, 8).double(), None, "none", "float32 tensor on the CPU, got torch.fl"),
        (torch.randn(1, 4, 2, 8), None, "none", "images of 2 x 8 are too small"),
        (torch.randn(1, 4, 8, 8), torch.randn(5), "none", r"bias must be .* \[6\].* got .*\[5\]"),
        (torch.randn(1, 4, 8, 8), None, "tanh", "activation must be one of"),
        (torch.randn(1, 4, 8, 8, requires_grad=True), None, "none", "gives no gradients"),
    ],
)
def test_wrong_calls_are_refused(x, bias, activation, message):
    packed, _ = make(ConvSettings(4, 6, (3, 3)))
    with pytest.raises(InputError, match=message):
        packed(x, bias, activation)


def test_wrong_weights_are_refused():
    conv = ConvSettings(4, 6, (3, 3))
    mask = torch.ones(conv.matrix_shape, dtype=torch.bool)
    positions = Positions(pack_bits(mask), conv.weight_shape)
    with pytest.raises(KernelError, match="float32 on the CPU"):
        PackedConv(SparseMatrix(positions, torch.randn(216).double()), conv)
    with pytest.raises(ValueError, match="keeps 216 weights but there are 3"):
        PackedConv(SparseMatrix(positions, torch.randn(3)), conv)(torch.randn(1, 4, 8, 8))
    with pytest.raises(InputError, match="groups=3 must divide"):
        ConvSettings(4, 6, (3, 3), groups=3)


@pytest.mark.parametrize(
    ("conv", "message"),
    [
        (ConvSettings(2, 2, (2, 2), padding="same"), "equal zeros on both sides"),
        (ConvSettings(2, 2, (3, 3), padding=(1, 1), padding_mode="reflect"), "reflect"),
        (ConvSettings(2, 2, (33, 33)), "up to 1024 positions"),
        (ConvSettings(0, 2, (1, 1)), "at least one channel"),
    ],
)
def test_what_the_kernel_cannot_run(conv, message):
    assert message in why_not(conv)
    rows, columns = conv.matrix_shape
    with pytest.raises(KernelError, match=message):
        PackedConv(SparseMatrix.from_dense(torch.zeros(rows, columns)), conv)
