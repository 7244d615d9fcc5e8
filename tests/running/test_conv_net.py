# SPDX-License-Identifier: Apache-2.0
"""Whole convolutional networks in one native call, against torch in float64."""

import copy
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import InputError, KernelError
from gossamer.ops.conv import ConvSettings
from gossamer.ops.engines.conv_net import PackedConvNet
from gossamer.ops.kernels import available_kernels
from gossamer.running.conv_net import NetForward
from gossamer.running.conv_net.network import net_forward
from gossamer.running.layers import compile, explain
from gossamer.running.packed import PackedLinear


class Net(nn.Module):
    """A stem, residual blocks with and without a projection, pooling, a head."""

    def __init__(self, widths=(5, 7), kernel=3, shortcut="projection", pool=True, mean="mean"):
        super().__init__()
        first, second = widths
        self.stem = nn.Conv2d(3, first, 2 * kernel - 1, 2, padding=kernel - 1)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if pool else nn.Identity()
        self.same1 = nn.Conv2d(first, first, kernel, padding=kernel // 2)
        self.same2 = nn.Conv2d(first, first, kernel, padding=kernel // 2, bias=False)
        self.down1 = nn.Conv2d(first, second, 3, 2, padding=1)
        self.down2 = nn.Conv2d(second, second, 1)
        self.project = nn.Conv2d(first, second, 1, 2)
        self.head = nn.Linear(second, 4)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.widths, self.shortcut, self.mean = widths, shortcut, mean

    def forward(self, x):
        x = self.pool(F.relu(self.stem(x)))
        x = (self.same2(F.relu(self.same1(x))) + x).relu()
        if self.shortcut == "projection":
            other = self.project(x)
        else:
            extra = self.widths[1] - self.widths[0]
            other = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, extra // 2, extra - extra // 2))
        x = F.relu(operator.add(other, self.down2(F.relu(self.down1(x)))))
        if self.mean == "mean":
            return self.head(x.mean((2, 3)))
        if self.mean == "module":
            return self.head(torch.flatten(self.average(x), 1))
        return x * 2.0  # not understood: the images themselves come out


def pruned(sparsity=0.7, **options):
    torch.manual_seed(0)
    model = Net(**options).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight[torch.rand_like(module.weight) < sparsity] = 0
    return model


def error_of(model, x, forward):
    expected = copy.deepcopy(model).double()(x.double())
    y = forward(x)
    assert y.shape == expected.shape
    if not y.numel():
        return 0.0
    return float((y - expected).abs().max() / expected.abs().max().clamp(min=1e-9))


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("options", [
    {},
    {"shortcut": "padded"},
    {"pool": False, "mean": "module"},
    {"mean": "none", "shortcut": "padded"},
    {"widths": (1, 2), "kernel": 1},
    {"widths": (130, 131), "sparsity": 0.9},
    {"sparsity": 0.0},
    {"sparsity": 1.0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [(16, 16), (9, 30), (33, 17)], ids=str)
def test_nets_equal_torch(kernels, options, size):
    model = pruned(**options)
    example = torch.randn(2, 3, *size)
    fp32, int8 = net_forward(model, example, "int8")
    assert fp32.net.plan.mean == (options.get("mean", "mean") != "none")
    for images in (0, 1, 2, 5):
        x = torch.randn(images, 3, *size)
        assert error_of(model, x, fp32) < 1e-5
    assert error_of(model, example, int8) < 0.04
    assert torch.equal(int8(example), int8(example))


@pytest.fixture(params=(1, 2))
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_many_images_go_in_groups(kernels, threads):
    """More than are run together."""
    model, x = pruned(), torch.randn(70, 3, 20, 20)
    fp32, _ = net_forward(model, x, "fp32")
    assert error_of(model, x, fp32) < 1e-5


@pytest.mark.parametrize("size", [(10, 132), (2, 126), (14, 14)], ids=str)
def test_images_have_room_for_the_zeros_between_them(kernels, threads, size):
    """The zeros below an image may need a tile that a single image does not have."""
    model = pruned(pool=False, mean="none")
    x = torch.randn(18, 3, *size)
    fp32, int8 = net_forward(model, x, "int8")
    assert error_of(model, x, fp32) < 1e-5
    assert error_of(model, x, int8) < 0.04


@pytest.mark.parametrize("size", [(20, 20), (28, 28), (32, 30), (56, 18)], ids=str)
@pytest.mark.parametrize("options", [
    {},
    {"pool": False, "mean": "none"},
    {"widths": (40, 50), "sparsity": 0.1},
], ids=str)  # fmt: skip
def test_an_image_gives_the_same_bits_in_any_group(kernels, threads, options, size):
    """Threads and the number of images decide who shares its tiles, not how it is summed."""
    x = torch.randn(11, 3, *size)
    for forward in net_forward(pruned(**options), x, "int8"):
        y = forward.features(x)
        torch.set_num_threads(1)
        for first, last in ((0, 1), (1, 2), (3, 6), (4, 11), (0, 11)):
            assert torch.equal(forward.features(x[first:last]), y[first:last])
        torch.set_num_threads(threads)


def test_int8_is_the_same_in_every_instruction_set(monkeypatch):
    model, x = pruned(), torch.randn(3, 3, 16, 16)
    found = {}
    for name in available_kernels():
        monkeypatch.setenv("GOSSAMER_KERNELS", name)
        _, int8 = net_forward(model, x, "int8")
        found[name] = (int8.net._native.activation_bits, int8(x))
    for bits, y in found.values():
        alike = [other for b, other in found.values() if b == bits]
        for other in alike:
            torch.testing.assert_close(y, other, rtol=1e-5, atol=1e-5)


def test_nan_shows_in_its_own_image_only(kernels):
    model = pruned()
    x = torch.randn(3, 3, 16, 16)
    fp32, int8 = net_forward(model, x, "int8")
    x[1, 0, 5, 5] = float("nan")
    for forward in (fp32, int8):
        y = forward(x)
        assert y[1].isnan().any()
        assert y[[0, 2]].isfinite().all()
    x[1, 0, 5, 5] = float("inf")
    assert int8(x)[1].isnan().all()


def test_compile_uses_a_net_and_other_sizes_go_layer_by_layer(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model, x = pruned(0.9), torch.randn(2, 3, 32, 32)
    model.head.weight[:, ::2] = 0  # a sparse layer behind the net
    fast = compile(model, example=x)
    assert isinstance(fast.head, PackedLinear)
    assert isinstance(fast.forward, NetForward)
    rows = explain(fast)
    assert rows[0].kernel == "conv_net"
    assert rows[0].shape == (6, 32, 32)
    for shape in ((2, 3, 32, 32), (4, 3, 32, 32), (1, 3, 24, 40), (0, 3, 32, 32)):
        y = torch.randn(shape)
        torch.testing.assert_close(fast(y), model(y), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(copy.deepcopy(fast)(x), model(x), rtol=1e-4, atol=1e-4)
    int8 = compile(model, example=x, precision="int8")
    assert explain(int8)[0].kernel == "conv_net-int8"
    assert 0 < error_of(model, x, int8) < 0.05


def test_compiled_nets_and_fused_convolutions_are_exported_layer_by_layer(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model, x = pruned(0.9), torch.randn(2, 3, 32, 32)
    fast = compile(model, example=x)
    for rewritten in (fast, copy.deepcopy(fast)):
        program = torch.export.export(rewritten, (x,)).module()
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)
    fast.forward = fast.forward.replaced  # the graph with fused ReLUs and sums
    program = torch.export.export(fast, (x,)).module()
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


def test_compiled_nets_are_saved_as_compact_layers(monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model, x = pruned(0.9), torch.randn(2, 3, 32, 32)
    gossamer.save(compile(model, example=x), tmp_path / "net")
    again = gossamer.load(tmp_path / "net", Net())
    torch.testing.assert_close(again.eval()(x), model(x), rtol=1e-4, atol=1e-4)


class Unlike(nn.Module):
    """Each understood up to the part that cannot be: `kind` says which."""

    def __init__(self, kind):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.valid = nn.Conv2d(4, 4, 3)
        self.pool = nn.MaxPool2d(2)
        self.kind = kind

    def forward(self, x):
        y = self.conv(x)
        if self.kind == "valid":
            return self.valid(F.relu(y))
        if self.kind == "pool of negative pixels":
            return self.pool(y)
        if self.kind == "two results":
            return F.relu(y), y.sigmoid()
        return y + 1.0


@pytest.mark.parametrize("kind", ["valid", "pool of negative pixels", "two results", "number"])
def test_what_is_not_understood_is_left_to_torch(kind):
    torch.manual_seed(0)
    model, x = Unlike(kind).eval().requires_grad_(False), torch.randn(2, 3, 8, 8)
    made = net_forward(model, x, "fp32")
    if made is None:
        return
    found, expected = made[0](x), model(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_wrong_images_are_refused():
    fp32, _ = net_forward(pruned(), torch.randn(1, 3, 16, 16), "fp32")
    with pytest.raises(InputError, match=r"x must be float32 \[N, 3, 16, 16\]"):
        fp32.net(torch.randn(1, 3, 16, 15))
    with pytest.raises(InputError, match="float64"):
        fp32.net(torch.randn(1, 3, 16, 16, dtype=torch.float64))
    with pytest.raises(KernelError, match="cannot be pickled"):
        fp32.net.__reduce__()


@pytest.mark.parametrize("settings", [
    ConvSettings(1, 1, (3, 3)),
    ConvSettings(1, 1, (3, 3), (3, 3), (1, 1)),
    ConvSettings(2, 2, (3, 3), (1, 1), (1, 1), groups=2),
    ConvSettings(1, 1, (3, 3), (2, 2)),
], ids=str)  # fmt: skip
def test_convolutions_that_are_no_shifts(settings):
    from gossamer.ops.conv import positions_of

    with pytest.raises(KernelError, match="conv net"):
        positions_of(settings, (9, 9))


def test_native_refuses_what_does_not_fit():
    net = gossamer.ops._native.ConvNet("reference", False)
    with pytest.raises(ValueError, match="pixels"):
        net.add_shape(0, 4, 1)
    shape = net.add_shape(4, 4, 1)
    with pytest.raises(ValueError, match="unknown shape"):
        net.add_value(shape + 1, 3, 0.0, 0)
    first, second = (net.add_value(shape, 2, 0.0, 0) for _ in range(2))
    values = torch.ones(4).numpy()
    bits = torch.full((2, 1), 3, dtype=torch.uint8).numpy()
    arguments = {"rows": 2, "columns": 2, "bias": None, "phases": 1, "relu": False}
    with pytest.raises(ValueError, match="beyond the zeros"):
        net.add_conv(
            first, second, values, bits, positions=[(0, 2, 0)], added=-1, added_first=0, **arguments
        )
    with pytest.raises(ValueError, match="unknown value"):
        net.add_conv(
            first, 7, values, bits, positions=[(0, 0, 0)], added=-1, added_first=0, **arguments
        )
    with pytest.raises(ValueError, match="nothing wrote"):
        net.finish(second, False)


def test_packed_nets_count_their_bytes(kernels):
    """AVX2 runs int8 in fixed point, whose weights are as large as those of fp32."""
    fp32, int8 = net_forward(pruned(0.5, widths=(64, 64)), torch.randn(1, 3, 16, 16), "int8")
    assert isinstance(fp32.net, PackedConvNet)
    assert 0 < int8.net.nbytes <= fp32.net.nbytes
    assert (int8.net.nbytes == fp32.net.nbytes) == (kernels == "avx2")
