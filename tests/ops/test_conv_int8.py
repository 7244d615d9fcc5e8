"""The int8 convolution: exact integers, and the error that quantisation allows."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conv import CASES, convs

from gossamer.errors import InputError, KernelError
from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.bits import pack_bits
from gossamer.ops.conv import ConvSettings
from gossamer.ops.conv.packed_conv import PackedInt8Conv
from gossamer.ops.kernels import available_kernels


def make(conv, density=0.3, seed=0, bits=None):
    """A packed convolution and its dense weight."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(conv.matrix_shape, generator=generator) < density
    matrix = torch.randn(conv.matrix_shape, generator=generator) * mask
    weight = matrix.view(conv.weight_shape)
    return PackedInt8Conv(SparseMatrix.from_dense(matrix, mask), conv, bits), weight


def apply(x, weight, s):
    return F.conv2d(x, weight, None, s.stride, s.even_padding(), s.dilation, s.groups)


def exact(x, weight, bits, s, bias=None):
    """What the kernel promises: integer sums in float64, scales and rounding as documented."""
    limit = 2 ** (bits - 1) - 1
    top_w = weight.flatten(1).abs().amax(1)
    top_w = torch.where(top_w > 0, top_w, 127.0)
    row_scale = (top_w.double() / 127).float()
    top_x = x.flatten(1).abs().amax(1)
    top_x = torch.where(top_x > 0, top_x, float(limit))
    # A number over a tensor is a product with its reciprocal in torch: two roundings.
    inverse_w = torch.full_like(top_w, 127.0).double() / top_w.double()
    inverse_x = torch.full_like(top_x, float(limit)) / top_x
    q_w = (weight.double() * inverse_w.view(-1, 1, 1, 1)).round()
    q_x = (x * inverse_x.view(-1, 1, 1, 1)).round().double()
    sums = apply(q_x, q_w, s).float()
    scale = (top_x / limit).view(-1, 1, 1, 1) * row_scale.view(1, -1, 1, 1)
    y = sums.double() * scale.double()  # one rounding, as in an fma
    return (y if bias is None else y + bias.double().view(1, -1, 1, 1)).float()


def assert_exact(packed, weight, x, bias=None, activation="none"):
    image = (x.shape[-2], x.shape[-1])
    actual = packed(x, bias, activation)
    expected = exact(x, weight, packed._by_size[image].activation_bits, packed.settings, bias)
    assert actual.dtype is torch.float32
    assert torch.equal(actual, expected.relu() if activation == "relu" else expected)


def assert_within_quantisation(packed, weight, x, bits):
    """Half a step of both scales for every product."""
    s, limit = packed.settings, 2 ** (bits - 1) - 1
    x, weight = x.double(), weight.double()
    x_step = (x.flatten(1).abs().amax(1) / limit / 2).view(-1, 1, 1, 1)
    w_step = (weight.flatten(1).abs().amax(1) / 254).view(-1, 1, 1, 1)
    kept = (weight != 0).double()
    ones = torch.ones_like(x)
    bound = x_step * apply(ones, weight.abs(), s) + apply(x.abs(), kept * w_step, s)
    bound = bound + x_step * apply(ones, kept * w_step, s)
    error = (packed(x.float()).double() - apply(x, weight, s)).abs()
    assert bool((error <= 1.001 * bound + 1e-6).all())


@settings(max_examples=150, deadline=None)
@given(
    convs(),
    st.tuples(st.integers(1, 20), st.integers(1, 40)),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.booleans(),
    st.sampled_from([None, 7, 8]),
    st.integers(0, 2**31),
)
def test_random_convolutions(conv, extra, images, density, has_bias, bits, seed):
    spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    height, width = (size + span for size, span in zip(extra, spans, strict=True))
    packed, weight = make(conv, density, seed, bits)
    x = torch.randn(images, conv.in_channels, height, width)
    bias = torch.randn(conv.out_channels) if has_bias else None
    assert_exact(packed, weight, x, bias, "relu" if seed % 2 else "none")


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("case", CASES)
def test_every_kernel_set(case, kernels, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    conv, image = CASES[case]
    for bits in (7, 8):
        packed, weight = make(conv, 0.2, bits=bits)
        x = torch.randn(2, conv.in_channels, *image) * torch.tensor([1.0, 30.0]).view(2, 1, 1, 1)
        assert_exact(packed, weight, x, torch.randn(conv.out_channels), "relu")
        assert_within_quantisation(packed, weight, x, bits)


@pytest.mark.parametrize(
    "conv",
    [
        ConvSettings(2, 3, (3, 3), padding=(40, 40), dilation=(40, 40)),
        ConvSettings(2, 3, (3, 3), (2, 3), padding=(5, 4), dilation=(3, 2)),
        ConvSettings(1, 1, (1, 1), (5, 5), padding=(4, 4)),
        ConvSettings(3, 2, (5, 1), (1, 2), padding=(0, 3)),
        ConvSettings(3, 2, (2, 2), (2, 2)),
    ],
)
@pytest.mark.parametrize("image", [(5, 3), (3, 70), (64, 1), (33, 31)])
def test_strings_with_little_or_much_around_them(conv, image):
    if min(conv.out_size(image)) < 1:
        pytest.skip("smaller than the kernel")
    packed, weight = make(conv, 0.7)
    assert_exact(packed, weight, torch.randn(3, conv.in_channels, *image))


def test_batches_larger_than_what_is_quantised_together():
    packed, weight = make(ConvSettings(64, 8, (3, 3), padding=(1, 1)), 0.05)
    assert_exact(packed, weight, torch.randn(5, 64, 60, 62))


def test_layouts_of_inputs_and_no_images():
    packed, weight = make(ConvSettings(6, 10, (3, 3), padding=(1, 1)))
    x = torch.randn(3, 6, 9, 11)
    assert_exact(packed, weight, x.contiguous(memory_format=torch.channels_last))
    assert_exact(packed, weight, x.transpose(2, 3))
    assert torch.equal(packed(x[0]), packed(x)[0])
    assert packed(x[:0]).shape == (0, 10, 9, 11)


def test_an_image_does_not_see_its_neighbours():
    packed, weight = make(ConvSettings(3, 5, (3, 3), padding=(1, 1)), 0.8)
    x = torch.randn(4, 3, 7, 7)
    x[1, 2, 3, 4] = float("nan")
    x[2] = 0.0
    y, bias = packed(x), torch.randn(5)
    assert bool(y[1].isnan().all())
    assert bool((y[2] == 0).all())
    for image in (0, 3):
        assert torch.equal(y[image], packed(x[image]))
    assert_exact(packed, weight, x[2:], bias)
    x[1, 2, 3, 4] = float("-inf")
    assert torch.equal(packed(x).isnan(), y.isnan())


def test_threads_give_the_same_bits():
    before = torch.get_num_threads()
    try:
        for images, conv in (
            (1, ConvSettings(24, 300, (3, 3), padding=(1, 1))),
            (3, ConvSettings(24, 300, (3, 3), padding=(1, 1))),
            (3, ConvSettings(40, 20, (1, 1), (2, 2), groups=2)),
        ):
            packed, _ = make(conv)
            x = torch.randn(images, conv.in_channels, 14, 14)
            results = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results.append(packed(x))
            assert torch.equal(*results)
    finally:
        torch.set_num_threads(before)


def test_other_activations():
    packed, _ = make(ConvSettings(4, 5, (3, 3)))
    x = torch.randn(2, 4, 9, 9)
    plain = packed(x)
    torch.testing.assert_close(packed(x, None, "gelu"), F.gelu(plain), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed(x, None, "silu"), F.silu(plain), rtol=1e-5, atol=1e-5)


def test_compiled_graphs_see_an_op():
    packed, _ = make(ConvSettings(4, 6, (3, 3), (2, 2), (1, 1)))
    x, bias = torch.randn(2, 4, 9, 11), torch.randn(6)
    graph = torch.compile(lambda x: packed(x, bias), backend="eager", fullgraph=True)
    assert torch.equal(graph(x), packed(x, bias))


def test_what_is_refused():
    conv = ConvSettings(4, 6, (3, 3))
    mask = torch.ones(conv.matrix_shape, dtype=torch.bool)
    values = torch.randn(mask.numel())

    def matrix(values):
        return SparseMatrix(Positions(pack_bits(mask), tuple(mask.shape)), values)

    with pytest.raises(KernelError, match="must be 7, 8 or None, got 6"):
        PackedInt8Conv(matrix(values), conv, 6)
    with pytest.raises(KernelError, match="conv_int8 kernel: values must be float32"):
        PackedInt8Conv(matrix(values.double()), conv)
    with pytest.raises(KernelError, match="must be finite"):
        PackedInt8Conv(matrix(values / 0), conv)
    wide = ConvSettings(131073, 1, (1, 1))
    with pytest.raises(KernelError, match=r"at most 131072 weights .* got 131073"):
        PackedInt8Conv(SparseMatrix.from_dense(torch.zeros(1, 131073)), wide)
    packed = PackedInt8Conv(matrix(values), conv)
    with pytest.raises(InputError, match=r"must be \[N, 4, H, W\]"):
        packed(torch.randn(1, 3, 8, 8))
    with pytest.raises(InputError, match="images of 2 x 8 are too small"):
        packed(torch.randn(1, 4, 2, 8))
    with pytest.raises(InputError, match="gives no gradients"):
        packed(torch.randn(1, 4, 8, 8, requires_grad=True))
