"""Convolutions in compile: packed where faster, BatchNorm folded, saved as compact layers."""

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn.layers import Conv2d, MaskedConv2d
from gossamer.ops.timing import Race
from gossamer.running.choice import Chooser, CostTable
from gossamer.running.layers import compile, explain
from gossamer.running.packed import PackedConv2d


def fixed_times(dense_us, sparse_us):
    return lambda dense, *sparse: Race((dense_us, *(sparse_us for _ in sparse)))


@pytest.fixture
def sparse_wins(tmp_path):
    return Chooser(CostTable(tmp_path / "wins.json"), fixed_times(100.0, 20.0))


@pytest.fixture
def dense_wins(tmp_path):
    return Chooser(CostTable(tmp_path / "loses.json"), fixed_times(20.0, 100.0))


def layer_rows(model):
    """Of single layers: whether a net runs them all at once is measured elsewhere."""
    return [row for row in explain(model) if row.kind != "NetForward"]


def settled(norm):
    """A BatchNorm with statistics that matter."""
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.normal_()
        norm.bias.normal_()
    return norm


class Block(nn.Module):
    def __init__(self, channels, branches=False):
        super().__init__()
        # The BatchNorms are registered in another order than they are used.
        self.bn2, self.bn1 = (settled(nn.BatchNorm2d(channels)) for _ in range(2))
        self.conv1, self.conv2 = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.branches = branches

    def forward(self, x):
        if self.branches and x.sum() > 1e9:  # not traceable
            return x
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + x).relu()


def pruned(branches=False, sparsity=0.8):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        settled(nn.BatchNorm2d(8)),
        nn.ReLU(),
        Block(8, branches),
        nn.Conv2d(8, 16, 1, stride=2),
    ).eval()
    gossamer.sparsify(model, sparsity=sparsity)
    return model


def assert_same_output(fast, model, x):
    with torch.no_grad():
        expected = model.eval()(x)
        torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
def test_convolutions_are_packed_with_their_batch_norms(sparse_wins, compacted, branches):
    model = pruned(branches)
    if compacted:
        gossamer.compact(model)
    x = torch.randn(2, 3, 12, 12)
    fast = compile(model, chooser=sparse_wins, example=x)
    for layer in (fast[0], fast[3].conv1, fast[3].conv2, fast[4]):
        assert isinstance(layer, PackedConv2d)
    for norm in (fast[1], fast[3].bn1, fast[3].bn2):
        assert type(norm) is nn.Identity
    assert isinstance(model[1], nn.BatchNorm2d)
    for shape in ((2, 3, 12, 12), (1, 3, 7, 9), (0, 3, 12, 12)):
        assert_same_output(fast, model, torch.randn(shape))
    rows = layer_rows(fast)
    assert [row.kernel for row in rows] == ["conv"] * 4
    assert rows[0].shape == (8, 3, 3, 3)
    assert rows[0].tokens == 2 * 12 * 12
    assert rows[3].tokens == 2 * 6 * 6
    assert rows[1].density == pytest.approx(model[3].conv1.density)


def test_convolutions_stay_dense_where_dense_is_faster(dense_wins):
    model = pruned()
    x = torch.randn(2, 3, 12, 12)
    fast = compile(model, chooser=dense_wins, example=x)
    assert type(fast[0]) is nn.Conv2d
    assert type(fast[1]) is nn.Identity
    assert int((fast[0].weight == 0).sum()) == int((~model[0].mask()).sum())
    assert_same_output(fast, model, x)
    assert all("dense is faster (0.20x)" in row.why for row in layer_rows(fast))


def test_real_measurement(tmp_path):
    model = pruned(sparsity=0.9)
    x = torch.randn(1, 3, 16, 16)
    fast = compile(model, chooser=Chooser(CostTable(tmp_path / "table.json")), example=x)
    assert_same_output(fast, model, x)
    for row in layer_rows(fast):
        assert (row.kernel == "conv") == (row.dense_us / row.sparse_us >= 1.05)


def test_without_tuning_a_rule_decides(monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    x = torch.randn(1, 3, 16, 16)
    fast = compile(pruned(), example=x)
    assert isinstance(fast[0], PackedConv2d)
    assert "fixed rule" in layer_rows(fast)[0].why


def test_int8_is_offered_where_it_is_allowed(tmp_path):
    """Raced with dense and the fp32 kernel; the fastest wins and explain shows both."""
    # Layers 1 and 2 are alike.
    races = iter([Race((60.0, 30.0, 20.0)), Race((60.0, 20.0, 30.0)), Race((21.0, 42.0, 30.0))])
    chooser = Chooser(CostTable(tmp_path / "table.json"), lambda *calls: next(races))
    model, x = pruned(), torch.randn(2, 3, 12, 12)
    fast = compile(model, chooser=chooser, example=x, precision="int8")
    rows = layer_rows(fast)
    assert [row.kernel for row in rows] == ["conv_int8", "conv", "conv", "dense"]
    assert rows[0].why == "3.00x dense; conv 2.00x"
    assert rows[1].why == "3.00x dense; conv_int8 2.00x"
    assert type(fast[4]) is nn.Conv2d
    with torch.no_grad():
        expected = model(x)
        error = (fast(x) - expected).abs().max()
        assert 0 < error < 0.05 * expected.abs().max()
    compact = fast[0].to_compact()  # what is saved are the values before they were quantised
    torch.testing.assert_close(compact(x), model[:2](x), rtol=1e-4, atol=1e-4)


def test_int8_for_real_and_without_tuning(monkeypatch, tmp_path):
    model, x = pruned(sparsity=0.9), torch.randn(1, 3, 16, 16)
    chooser = Chooser(CostTable(tmp_path / "table.json"))
    fast = compile(model, chooser=chooser, example=x, precision="int8")
    assert all(row.kernel in ("conv", "conv_int8", "dense") for row in layer_rows(fast))
    assert all("conv" in row.why for row in layer_rows(fast))
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    fast = compile(model, example=x, precision="int4")
    assert {row.kernel for row in layer_rows(fast)} == {"conv_int8"}
    assert {row.kernel for row in layer_rows(compile(model, example=x, precision="bf16"))} == {
        "conv"
    }
    with pytest.raises(InputError, match="got 'fp8'"):
        compile(model, example=x, precision="fp8")


def test_without_example_convolutions_stay_dense_but_fold(sparse_wins):
    model = pruned()
    fast = compile(model, chooser=sparse_wins)
    assert type(fast[0]) is nn.Conv2d
    assert type(fast[3].bn1) is nn.Identity
    assert_same_output(fast, model, torch.randn(1, 3, 10, 10))
    assert all("pass example=" in row.why for row in layer_rows(fast))
    # Not traceable and no example: neighbours in a Sequential only.
    fast = compile(pruned(branches=True), chooser=sparse_wins)
    assert type(fast[1]) is nn.Identity
    assert isinstance(fast[3].bn1, nn.BatchNorm2d)


def test_dense_layers_fold_too_and_the_original_is_untouched(sparse_wins):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), settled(nn.BatchNorm2d(4))).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fast = compile(model, chooser=sparse_wins)
    assert type(fast[1]) is nn.Identity
    assert_same_output(fast, model, torch.randn(2, 3, 6, 6))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class Shared(nn.Module):
    """A convolution whose output is used beside the BatchNorm too."""

    def __init__(self, branches):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), settled(nn.BatchNorm2d(4))
        self.branches = branches

    def forward(self, x):
        if self.branches and x.sum() > 1e9:
            return x
        y = self.conv(x)
        return y + self.bn(y)


class Twice(Shared):
    def forward(self, x):
        if self.branches and x.sum() > 1e9:
            return x
        return self.bn(self.conv(x)) + self.bn(self.conv(x.flip(-1)))


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("kind", [Shared, Twice])
def test_what_must_not_fold_does_not(kind, branches, sparse_wins):
    model = kind(branches).eval()
    x = torch.randn(2, 3, 6, 6)
    fast = compile(model, chooser=sparse_wins, example=x)
    assert isinstance(fast.bn, nn.BatchNorm2d)
    assert_same_output(fast, model, x)


def test_hooks_and_missing_statistics_prevent_folding(sparse_wins):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), settled(nn.BatchNorm2d(4)))
    seen = []
    model[1].register_forward_pre_hook(lambda *_: seen.append(1))
    fast = compile(model, chooser=sparse_wins)
    fast(torch.randn(1, 3, 5, 5))
    assert seen
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    assert isinstance(compile(model, chooser=sparse_wins)[1], nn.BatchNorm2d)


def test_reasons_to_stay_dense(sparse_wins):
    x = torch.randn(1, 4, 8, 8)
    reflect = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"))
    gossamer.sparsify(reflect, sparsity=0.5)
    fast = compile(reflect, chooser=sparse_wins, example=x)
    assert "padding_mode='reflect'" in layer_rows(fast)[0].why
    assert_same_output(fast, reflect, x)
    double = nn.Sequential(nn.Conv2d(4, 4, 3)).double()
    gossamer.sparsify(double, sparsity=0.5)
    fast = compile(double, chooser=sparse_wins, example=x.double())
    assert "kernels are float32" in layer_rows(fast)[0].why
    with pytest.raises(InputError, match="example must be a tensor"):
        compile(reflect, chooser=sparse_wins, example=[1])


def test_zeros_of_another_pruner_and_a_single_layer(sparse_wins):
    conv = nn.Conv2d(4, 8, 3)
    with torch.no_grad():
        conv.weight[torch.rand(conv.weight.shape) < 0.7] = 0.0
    x = torch.randn(1, 4, 8, 8)
    fast = compile(conv, chooser=sparse_wins, example=x)
    assert isinstance(fast, PackedConv2d)
    assert_same_output(fast, conv, x)
    full = nn.Conv2d(4, 8, 3)
    assert type(compile(full, chooser=sparse_wins, example=x)) is nn.Conv2d


def test_a_compiled_model_is_saved_as_compact_layers(sparse_wins, tmp_path):
    model = nn.Sequential(nn.Conv2d(4, 8, 3), settled(nn.BatchNorm2d(8)), nn.ReLU()).eval()
    gossamer.sparsify(model, sparsity=0.7)
    x = torch.randn(1, 4, 8, 8)
    fast = compile(model, chooser=sparse_wins, example=x)
    gossamer.save(fast, tmp_path / "model")
    loaded = gossamer.load(tmp_path / "model").eval()
    assert isinstance(loaded[0], Conv2d)
    torch.testing.assert_close(loaded(x), fast(x))


class CifarBlock(nn.Module):
    def __init__(self, before, channels):
        super().__init__()
        self.stride, self.extra = (1, 0) if before == channels else (2, channels // 4)
        self.conv1 = nn.Conv2d(before, channels, 3, self.stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        x = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(x, (0, 0, 0, 0, self.extra, self.extra)))


class CifarResNet(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for stage, (before, channels) in enumerate([(16, 16), (16, 32), (32, 64)], 1):
            rest = [CifarBlock(channels, channels) for _ in range(blocks - 1)]
            setattr(self, f"layer{stage}", nn.Sequential(CifarBlock(before, channels), *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


@pytest.mark.slow
def test_a_real_network(sparse_wins):
    folder = Path(os.environ.get("GOSSAMER_DATA", "")) / "resnet-cifar"
    files = sorted(folder.glob("resnet20-*.safetensors"))
    if not files:
        pytest.skip("set GOSSAMER_DATA to the folder that holds resnet-cifar")
    from safetensors.torch import load_file

    model = CifarResNet(3).eval()
    model.load_state_dict(load_file(files[0]))
    gossamer.sparsify(model, sparsity=0.8)
    x = torch.randn(4, 3, 32, 32)
    fast = compile(model, chooser=sparse_wins, example=x)
    kinds = [type(module) for module in fast.modules()]
    assert kinds.count(PackedConv2d) == 19
    assert nn.BatchNorm2d not in kinds
    assert MaskedConv2d not in kinds
    assert_same_output(fast, model, x)


class Residual(nn.Module):
    """Everything that can be fused, and a sum that cannot."""

    def __init__(self):
        super().__init__()
        self.body, self.side, self.last = (
            nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(3)
        )
        self.norm = settled(nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norm(self.body(x))
        y += self.side(x)
        y = self.relu(y)
        return F.relu(self.last(y)) + y.mean(dim=(2, 3), keepdim=True)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_relus_and_residual_sums_are_fused(sparse_wins, precision):
    torch.manual_seed(0)
    model = Residual().eval()
    gossamer.sparsify(model, sparsity=0.7)
    x = torch.randn(3, 8, 9, 11)
    fast = compile(model, chooser=sparse_wins, example=x, precision=precision)
    graph = fast.forward.fused.graph
    calls = {str(node.target): node for node in graph.nodes if node.op == "call_module"}
    assert set(calls) == {"body", "last", "side"}
    assert [name for name, node in calls.items() if node.kwargs] == ["body", "last"]
    assert [name for name, node in calls.items() if len(node.args) == 2] == ["body"]
    tolerance = 1e-5 if precision == "fp32" else 0.2
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(copy.deepcopy(fast)(x), fast(x), rtol=0, atol=0)
        # A layer called by itself is the layer alone.
        torch.testing.assert_close(fast.last(x), model.last(x), rtol=tolerance, atol=tolerance)


def test_what_is_added_must_have_the_shape_of_the_result(sparse_wins):
    model = nn.Sequential(nn.Conv2d(8, 8, 3)).eval()
    gossamer.sparsify(model, sparsity=0.7)
    x = torch.randn(1, 8, 9, 11)
    fast = compile(model, chooser=sparse_wins, example=x)
    with pytest.raises(InputError, match=r"what is added must be float32 \[1, 8, 7, 9\]"):
        fast[0](x, x)
