# SPDX-License-Identifier: Apache-2.0
"""Channels cut out of networks: what is dead goes on both sides, and outputs stay as they were."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, TargetError
from gossamer.nn.layers.shortcut import PaddedShortcut, padding_of
from gossamer.nn.surgery.channels import cut_dead_channels, cut_sizes, read_channels, restore_cut
from gossamer.nn.surgery.channels.resizing import Kept, resize


class OptionA(nn.Module):
    def __init__(self, more):
        super().__init__()
        self.more = more

    def forward(self, x):
        side = self.more // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, side, side))


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Identity() if inner == outer else OptionA(outer - inner)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Residual(nn.Module):
    """A stem, two blocks, the second of which halves the image; flattened pixels at the end."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16 * 4, 5)

    def forward(self, x):
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.head(torch.flatten(F.avg_pool2d(x, 2), 1))


class Depthwise(nn.Module):
    """An inverted residual with squeeze and excitation, as in MobileNetV3."""

    def __init__(self):
        super().__init__()
        self.expand, self.norm1 = nn.Conv2d(6, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.deep = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.norm2 = nn.BatchNorm2d(12)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.project = nn.Conv2d(12, 6, 1)

    def forward(self, x):
        y = F.hardswish(self.norm1(self.expand(x)))
        y = F.hardswish(self.norm2(self.deep(y)))
        scale = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return self.project(y * scale) + x


class Fire(nn.Module):
    """Two ways joined channel by channel, as in SqueezeNet."""

    def __init__(self):
        super().__init__()
        self.squeeze = nn.Conv2d(3, 6, 1)
        self.one, self.three = nn.Conv2d(6, 8, 1), nn.Conv2d(6, 8, 3, padding=1)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return self.last(torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1))


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.middle, self.norm2 = nn.Conv2d(12, 8, 3, padding=1, groups=4), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.last(self.norm2(self.middle(torch.relu(self.norm(self.first(x))))))


def settled(model):
    """In float64, with statistics that matter."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.double().eval()


def images(size=8, channels=3):
    torch.manual_seed(1)
    return torch.randn(3, channels, size, size, dtype=torch.float64)


def kill(model, part, seed=0):
    """Zero what makes random groups of channels, as a schedule with coupled channels does."""
    found = read_channels(model, images(channels=first_channels(model)))
    generator = torch.Generator().manual_seed(seed)
    groups = sorted({g for one in found.layers.values() for g in found.cells.groups(one.outputs)})
    gone = {g for g in groups if float(torch.rand(1, generator=generator)) < part}
    with torch.no_grad():
        for name, layer in found.layers.items():
            places = torch.tensor([g in gone for g in found.cells.groups(layer.outputs)])
            fixed = torch.tensor(
                [g in found.cells.fixed() for g in found.cells.groups(layer.outputs)]
            )
            for parameter in model.get_submodule(name)._parameters.values():
                if parameter is not None:
                    parameter[places & ~fixed] = 0.0
    return model


def first_channels(model):
    return next(m for m in model.modules() if isinstance(m, nn.Conv2d)).in_channels


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("make", [Residual, Depthwise, Fire, Grouped])
def test_outputs_stay_and_the_network_is_smaller(make, part):
    model = kill(settled(make()), part)
    x = images(channels=first_channels(model))
    expected = model(x)
    before = sum(p.numel() for p in model.parameters())
    cut = cut_dead_channels(model, x)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    after = sum(p.numel() for p in model.parameters())
    assert cut.parameters == (before, after)
    assert (after < before) == bool(cut.layers)
    if make is not Grouped:  # whose groups must stay equal
        assert (after < before) == (part > 0)


def test_all_sides_lose_the_channel():
    model = settled(Residual())
    with torch.no_grad():
        for norm in (model.bn, model.blocks[0].bn2):
            norm.weight[2] = norm.bias[2] = 0.0
        second = model.blocks[1].bn2
        second.weight[6] = second.bias[6] = 0.0  # 4 channels of zeros, then the third of the stem
        model.blocks[1].bn1.weight[:3] = model.blocks[1].bn1.bias[:3] = 0.0
    expected = model(images())
    cut_dead_channels(model, images())
    assert (model.conv.out_channels, model.bn.num_features) == (7, 7)
    first, last = model.blocks
    assert (first.conv1.in_channels, first.conv1.out_channels) == (7, 8)
    assert first.conv2.weight.shape == (7, 8, 3, 3)
    assert last.conv1.weight.shape == (13, 7, 3, 3)
    assert last.conv2.weight.shape == (15, 13, 3, 3)
    assert last.bn2.running_mean.shape == (15,)
    assert model.head.in_features == 15 * 4
    assert isinstance(last.shortcut, PaddedShortcut)
    assert last.shortcut.padding == (4, 4, 2)
    torch.testing.assert_close(model(images()), expected, rtol=1e-12, atol=1e-12)


def test_one_summand_alone_keeps_its_channel():
    model = settled(Residual())
    with torch.no_grad():
        model.blocks[0].bn2.weight[2] = model.blocks[0].bn2.bias[2] = 0.0
    assert cut_dead_channels(model, images()).layers == {}
    assert model.conv.out_channels == 8


def test_a_layer_keeps_one_channel():
    model = settled(Fire())
    with torch.no_grad():
        for layer in (model.squeeze, model.one, model.three):
            layer.weight.zero_()
            layer.bias.zero_()
    expected = model(images())
    cut = cut_dead_channels(model, images())
    assert "stays although nothing needs it" in str(cut)
    assert model.one.weight.shape == (1, 1, 1, 1)
    torch.testing.assert_close(model(images()), expected)


def test_groups_stay_equal_and_it_is_said():
    model = settled(Grouped())
    with torch.no_grad():
        model.norm.weight[:4] = model.norm.bias[:4] = 0.0  # 3 of the first group, 1 of the second
    expected = model(images())
    cut = cut_dead_channels(model, images())
    assert model.middle.in_channels == 12
    assert "its 4 groups must be equal" in str(cut)
    with torch.no_grad():
        for place in (0, 4, 7, 11):
            model.norm.weight[place] = model.norm.bias[place] = 0.0
        model.norm.weight[1:3] = 1.0
    expected = model(images())
    cut_dead_channels(model, images())
    assert model.middle.weight.shape == (8, 2, 3, 3)
    assert model.middle.in_channels == 8
    torch.testing.assert_close(model(images()), expected, rtol=1e-12, atol=1e-12)


def test_groups_that_do_not_divide_are_refused():
    model = Grouped()
    kept = Kept("product", tuple(range(1, 12)), tuple(range(8)), 12, 8)
    with pytest.raises(TargetError, match="middle: its 4 groups would keep 2, 3, 3, 3 channels"):
        resize(model, "middle", kept)
    assert model.middle.weight.shape == (8, 3, 3, 3)


class Shuffled(nn.Module):
    """An operation between its layers that nobody reads."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.middle, self.last = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.last(self.middle(self.norm(self.first(x)).roll(1, dims=1)))


def test_what_is_not_understood_keeps_its_channels():
    model = settled(Shuffled())
    with torch.no_grad():
        model.norm.weight.zero_()
        model.norm.bias.zero_()
        model.middle.weight[0] = 0.0
        model.middle.bias[0] = 0.0
    expected = model(images())
    cut = cut_dead_channels(model, images())
    assert model.first.out_channels == 4
    assert model.middle.weight.shape == (5, 4, 1, 1)
    assert "roll" in str(cut)
    torch.testing.assert_close(model(images()), expected)


def test_a_forward_that_cannot_be_traced_is_refused():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return self.conv(x) if x.sum() > 0 else x

    with pytest.raises(TargetError, match="cannot be traced"):
        cut_dead_channels(Branching(), images().float())


def test_a_hooked_layer_keeps_its_channels():
    model = settled(Fire())
    with torch.no_grad():
        model.one.weight[:3] = 0.0
        model.one.bias[:3] = 0.0
    seen = []
    model.one.register_forward_hook(lambda module, given, result: seen.append(result.shape[1]))
    cut_dead_channels(model, images())
    model(images())
    assert seen[-1] == 8


def steps(model, optimizer, count, gone=None):
    for _ in range(count):
        optimizer.zero_grad()
        model(images()).square().mean().backward()
        for tensor in () if gone is None else model[1].parameters():
            tensor.grad[gone] = 0.0  # as the schedule holds what it cut
        optimizer.step()


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-2),
        lambda parameters: torch.optim.AdamW(parameters, 0.01),
    ],
)
def test_training_goes_on_as_with_zeros(optimizer_of):
    model = settled(
        nn.Sequential(nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9), nn.ReLU(), nn.Conv2d(9, 2, 1))
    ).train()
    optimizer = optimizer_of(model.parameters())
    steps(model, optimizer, 3)
    gone = torch.tensor([0, 4, 5])
    with torch.no_grad():
        for tensor in model[1].parameters():
            tensor[gone] = 0.0
            for slot in optimizer.state[tensor].values():
                if isinstance(slot, torch.Tensor) and slot.ndim:
                    slot[gone] = 0.0
    slim, holder = copy.deepcopy((model, optimizer))
    cut_dead_channels(slim, images(), holder)
    assert slim[0].out_channels == slim[3].in_channels == 6
    steps(slim, holder, 5)
    steps(model, optimizer, 5, gone)
    torch.testing.assert_close(slim(images()), model(images()), rtol=1e-9, atol=1e-9)


def test_masks_follow_and_full_ones_go():
    model = settled(Residual())
    gossamer.sparsify(model, sparsity=0.5, targets=["blocks.1.conv1"])
    with torch.no_grad():
        model.bn.weight[1] = model.bn.bias[1] = 0.0
        model.blocks[0].bn2.weight[1] = model.blocks[0].bn2.bias[1] = 0.0
        second = model.blocks[1].bn2
        second.weight[5] = second.bias[5] = 0.0
    expected = model(images())
    cut_dead_channels(model, images())
    layer = model.blocks[1].conv1
    assert layer.form == "masked"
    assert layer.weight_shape == (16, 7, 3, 3)
    torch.testing.assert_close(model(images()), expected, rtol=1e-12, atol=1e-12)
    gossamer.compact(model)
    with torch.no_grad():
        model.blocks[1].bn1.weight[0] = model.blocks[1].bn1.bias[0] = 0.0
    expected = model(images())
    cut_dead_channels(model, images())
    assert model.blocks[1].conv1.form == "compact"
    assert model.blocks[1].conv1.weight_shape == (15, 7, 3, 3)
    torch.testing.assert_close(model(images()), expected, rtol=1e-12, atol=1e-12)


def test_compact_values_are_not_cut_while_they_are_trained():
    model = settled(Fire())
    gossamer.sparsify(model, sparsity=0.5, targets=["last"])
    gossamer.compact(model)
    with torch.no_grad():
        model.one.weight[0] = 0.0
        model.one.bias[0] = 0.0
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TargetError, match="Cut channels before"):
        cut_dead_channels(model, images(), optimizer)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.one.out_channels == 8
    assert cut_sizes(model) == {}


def test_a_packed_model_is_refused():
    model = settled(Fire()).float()
    gossamer.sparsify(model, sparsity=0.9, targets=["three"])
    layer = model.three
    fast = gossamer.compile(model, example=images().float())
    if any(type(m).__name__.startswith("Packed") for m in fast.modules()):
        with pytest.raises(TargetError, match="packed for inference"):
            cut_dead_channels(fast, images().float())
    assert layer.form == "masked"


def test_files_hold_sizes_and_the_users_model_follows(tmp_path):
    model = kill(settled(Residual()), 0.5).float()
    x = images().float()
    cut_dead_channels(model, x)
    expected = model(x)
    gossamer.save(model, tmp_path / "slim")
    loaded = gossamer.load(tmp_path / "slim", Residual()).eval()
    assert torch.equal(loaded(x), expected)
    gossamer.save(loaded, tmp_path / "again")
    assert torch.equal(gossamer.load(tmp_path / "again", Residual()).eval()(x), expected)
    fast = gossamer.compile(loaded, example=x)
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)


def test_containers_of_torch_describe_themselves(tmp_path):
    model = settled(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    ).float()
    with torch.no_grad():
        model[1].weight[:5] = model[1].bias[:5] = 0.0
    cut_dead_channels(model, images().float())
    gossamer.save(model, tmp_path / "slim")
    loaded = gossamer.load(tmp_path / "slim")
    assert loaded[0].out_channels == 3
    assert torch.equal(loaded(images().float()), model(images().float()))


def test_a_file_cannot_ask_for_more_than_the_model_has(tmp_path):
    model = settled(Fire()).float()
    with torch.no_grad():
        model.one.weight[0] = 0.0
        model.one.bias[0] = 0.0
    cut_dead_channels(model, images().float())
    gossamer.save(model, tmp_path / "slim")

    class Narrow(Fire):
        def __init__(self):
            super().__init__()
            self.one = nn.Conv2d(6, 5, 1)

    narrow = Narrow()
    with pytest.raises(ArtifactError, match="one: has 5 channels"):
        gossamer.load(tmp_path / "slim", narrow)
    assert narrow.one.out_channels == 5
    assert narrow.last.in_channels == 16
    with pytest.raises(ArtifactError, match="there is nothing"):
        gossamer.load(tmp_path / "slim", nn.Sequential(nn.Conv2d(3, 3, 1)))


def test_sizes_are_restored_for_grouped_and_depthwise_layers():
    for make in (Grouped, Depthwise):
        model = kill(settled(make()), 0.6, seed=3)
        x = images(channels=first_channels(model))
        cut_dead_channels(model, x)
        fresh = make().double().eval()
        restore_cut(fresh, cut_sizes(model))
        fresh.load_state_dict(model.state_dict())
        assert torch.equal(fresh(x), model(x))


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_shortcuts_are_recognised_by_what_they_compute():
    padded = Lambda(lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 3, 5), "constant", 0))
    assert padding_of(padded) == (3, 5, 2)
    assert padding_of(Lambda(lambda x: F.pad(x, (0, 0, 0, 0, 1, 0)))) == (1, 0, 1)
    x = torch.randn(2, 3, 7, 5)
    assert torch.equal(PaddedShortcut(3, 5)(x), padded(x))
    for other in (
        Lambda(lambda x: F.pad(x, (1, 0, 0, 0, 1, 0))),
        Lambda(lambda x: F.pad(x, (0, 0, 0, 0, 1, 0), value=1.0)),
        Lambda(lambda x: F.pad(x[:, :, ::2, ::3], (0, 0, 0, 0, 1, 0))),
        Lambda(lambda x: x + 1),
        nn.Conv2d(1, 1, 1),
    ):
        assert padding_of(other) is None
