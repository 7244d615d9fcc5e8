"""The products of a training step of a sparse convolution against float64 `F.conv2d`."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError
from gossamer.formats.bits import pack_bits, unpack_bits
from gossamer.ops.conv import ConvSettings
from gossamer.ops.kernels import available_kernels
from gossamer.ops.training import compact_conv
from gossamer.ops.training import conv as conv_train

ROUNDOFF = 2.0**-24


def gradients(x, weight, grad, s):
    """y, dX and dW of the dense convolution, in float64."""
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = F.conv2d(x, weight, None, s.stride, s.even_padding(), s.dilation, s.groups)
    return y.detach(), *torch.autograd.grad(y, (x, weight), grad.double())


def assert_close(s, image, images=2, density=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(s.matrix_shape, generator=generator) < density
    matrix = torch.randn(s.matrix_shape, generator=generator) * mask
    values, bits = matrix[mask], pack_bits(mask)
    x = torch.randn(images, s.in_channels, *image, generator=generator)
    grad = torch.randn(images, s.out_channels, *s.out_size(image), generator=generator)
    found = (
        conv_train._conv(x, values, bits, None, s.numbers()),
        conv_train._grad_input(grad, values, bits, *image, s.numbers()),
        conv_train._grad_values(grad, x, bits, values.numel(), s.numbers()),
    )
    expected = [*gradients(x, matrix.view(s.weight_shape), grad, s)]
    sizes = [*gradients(x.abs(), matrix.abs().view(s.weight_shape), grad.abs(), s)]
    expected[2], sizes[2] = (dw.flatten(1)[mask] for dw in (expected[2], sizes[2]))
    terms = (mask.shape[1], mask.numel() // mask.shape[1] * s.weight_shape[2] * s.weight_shape[3])
    for one, two, size, num in zip(
        found, expected, sizes, (*terms, grad[:, 0].numel()), strict=True
    ):
        assert one.shape == two.shape
        assert bool(((one - two).abs() <= (num + 4) * ROUNDOFF * size).all())
    return found


@st.composite
def convs(draw):
    small = st.sampled_from
    groups = draw(small([1, 1, 1, 2, 3]))
    return ConvSettings(
        groups * draw(st.integers(1, 9)),
        groups * draw(st.integers(1, 20)),
        (draw(small([1, 1, 2, 3, 3, 5])), draw(small([1, 1, 2, 3, 3, 5]))),
        (draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        (draw(st.integers(0, 6)), draw(st.integers(0, 6))),
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        groups,
    )


@settings(max_examples=120, deadline=None)
@given(
    convs(),
    st.tuples(st.integers(1, 20), st.integers(1, 40)),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.integers(0, 2**31),
)
def test_random_convolutions(conv, image, images, density, seed):
    spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    sizes = [max(n, s - 2 * p + 1) for n, s, p in zip(image, spans, conv.padding, strict=True)]
    assert_close(conv, (sizes[0], sizes[1]), images, density, seed)


CASES = {
    "cifar": (ConvSettings(16, 16, (3, 3), padding=(1, 1)), (32, 32)),
    "imagenet end": (ConvSettings(40, 130, (3, 3), padding=(1, 1)), (7, 7)),
    "stride 2": (ConvSettings(20, 33, (3, 3), (2, 2), (1, 1)), (15, 17)),
    "pointwise": (ConvSettings(130, 140, (1, 1)), (14, 14)),
    "pointwise stride 2": (ConvSettings(9, 20, (1, 1), (2, 2)), (9, 11)),
    "steps longer than the kernel": (ConvSettings(5, 7, (2, 2), (5, 3)), (13, 12)),
    "stem": (ConvSettings(3, 24, (7, 7), (2, 2), (3, 3)), (33, 33)),
    "dilated stride 2": (ConvSettings(5, 8, (3, 3), (2, 2), (2, 2), (2, 2)), (10, 70)),
    "padding wider than the kernel": (ConvSettings(2, 3, (1, 2), (1, 2), (3, 4)), (4, 5)),
    "depthwise": (ConvSettings(20, 20, (3, 3), (2, 2), (1, 1), groups=20), (9, 9)),
    "grouped": (ConvSettings(12, 300, (3, 3), padding=(1, 1), groups=2), (6, 10)),
    "one pixel": (ConvSettings(3, 5, (1, 1)), (1, 1)),
    "very large kernel": (ConvSettings(2, 3, (31, 31), padding=(15, 15)), (32, 33)),
}


@pytest.mark.parametrize("kernels", available_kernels())
@pytest.mark.parametrize("case", CASES)
def test_every_kernel_set(case, kernels, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    assert_close(*CASES[case], density=0.2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("images", [1, 5])
def test_threads_do_not_change_a_bit(case, images):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = assert_close(*CASES[case], images)
        torch.set_num_threads(2)
        two = assert_close(*CASES[case], images)
    finally:
        torch.set_num_threads(before)
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first, second)


def test_strided_operands():
    s = ConvSettings(6, 10, (3, 3), padding=(1, 1))
    mask = torch.rand(s.matrix_shape) < 0.3
    values, bits = torch.randn(int(mask.sum()), 2)[:, 0], pack_bits(mask)
    x = torch.randn(3, 6, 9, 11).contiguous(memory_format=torch.channels_last)
    grad = torch.ones(()).expand(3, 10, 9, 11)
    wide = grad.contiguous()
    for one, two in (
        (
            conv_train._conv(x, values, bits, None, s.numbers()),
            conv_train._conv(x.contiguous(), values.clone(), bits, None, s.numbers()),
        ),
        (
            conv_train._grad_input(grad, values, bits, 9, 11, s.numbers()),
            conv_train._grad_input(wide, values.clone(), bits, 9, 11, s.numbers()),
        ),
        (
            conv_train._grad_values(grad, x, bits, len(values), s.numbers()),
            conv_train._grad_values(wide, x.contiguous(), bits, len(values), s.numbers()),
        ),
    ):
        assert torch.equal(one, two)


def operands(s, image):
    mask = torch.rand(s.matrix_shape) < 0.4
    x = torch.randn(2, s.in_channels, *image, requires_grad=True)
    return x, torch.randn(int(mask.sum()), requires_grad=True), pack_bits(mask)


def test_ops_pass_opcheck():
    s = ConvSettings(4, 6, (3, 2), (2, 1), (1, 0), groups=2)
    x, values, bits = operands(s, (7, 6))
    bias, numbers = torch.randn(6, requires_grad=True), s.numbers()
    grad = torch.randn(2, 6, *s.out_size((7, 6)), requires_grad=True)
    ops = torch.ops.gossamer
    for op, arguments in (
        (ops.compact_conv, (x, values, bits, bias, numbers)),
        (ops.compact_conv_grad_input, (grad, values, bits, 7, 6, numbers)),
        (ops.compact_conv_grad_values, (grad, x, bits, values.numel(), numbers)),
    ):
        torch.library.opcheck(op.default, arguments, atol=1e-4, rtol=1e-4)


def test_second_derivatives_equal_those_of_float64():
    s = ConvSettings(4, 6, (3, 3), (2, 1), (1, 1))
    x, values, bits = operands(s, (7, 6))

    def second(x, values, run):
        x, values = (t.detach().requires_grad_() for t in (x, values))
        first = torch.autograd.grad(run(x, values).sin().sum(), (x, values), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, values))

    def dense(x, values):
        mask = unpack_bits(bits, s.matrix_shape[1])
        weight = values.new_zeros(s.matrix_shape).masked_scatter(mask, values)
        return s.apply(x, weight.view(s.weight_shape), None)

    found = second(x, values, lambda x, v: compact_conv(x, v, bits, None, s))
    for one, two in zip(found, second(x.double(), values.double(), dense), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-3)


def test_what_is_refused():
    s = ConvSettings(4, 6, (3, 3))
    x, values, bits = operands(s, (7, 6))
    with pytest.raises(InputError, match=r"x must be \[N, 4, H, W\]"):
        compact_conv(x[:, :3], values, bits, None, s)
    with pytest.raises(InputError, match="2 x 6 are too small"):
        compact_conv(x[:, :, :2], values, bits, None, s)
    with pytest.raises(ValueError, match="mask"):
        conv_train._conv(x.detach(), values.detach()[1:], bits, None, s.numbers())
