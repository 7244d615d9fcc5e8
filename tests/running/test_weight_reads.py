# SPDX-License-Identifier: Apache-2.0
"""Models that read `layer.weight`: the same result, whichever kernel won; else a typed error."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    MambaConfig,
    MambaModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

import gossamer
from gossamer.errors import DenseFallback, InputError, WeightIsPacked
from gossamer.nn.layers import CompactWeight
from gossamer.running.layers import compile, explain
from gossamer.running.layers.compiler import READ_BY_MODEL
from gossamer.running.packed import PackedConv2d, PackedLinear


@pytest.fixture
def sparse_wins(monkeypatch):
    """The rule without measurements: a layer this sparse runs on a kernel."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


class Own(nn.Module):
    """Computes with the weight of `a`, and looks at that of `b`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x):
        x = F.linear(x, self.a.weight).to(self.b.weight.dtype)
        return self.b(x)[..., : self.b.weight.shape[0]]


def pruned(form="masked", sparsity=0.8):
    model = Own()
    gossamer.sparsify(model, sparsity=sparsity)
    if form == "compact":
        gossamer.compact(model)
    return model.eval()


@pytest.mark.parametrize("sparsity", [0.8, 0.2])
def test_layers_whose_weight_is_computed_with_stay_dense(sparse_wins, sparsity):
    """Whether a kernel won (0.8) or dense (0.2) for the other layers."""
    model, x = pruned(sparsity=sparsity), torch.randn(3, 24)
    with torch.no_grad():
        expected = model(x)
    fast = compile(model, example=x)
    torch.testing.assert_close(fast(x), expected, rtol=1e-5, atol=1e-5)
    assert type(fast.a) is nn.Linear
    assert isinstance(fast.b, PackedLinear) == (sparsity == 0.8)
    assert {row.why for row in explain(fast) if row.name == "a"} == {READ_BY_MODEL}
    with gossamer.strict(), pytest.raises(DenseFallback, match="a: the model computes"):
        compile(model, example=x)


def test_a_compact_layer_whose_weight_is_computed_with_runs_compiled(sparse_wins):
    model, x = pruned("compact"), torch.randn(3, 24)
    fast = compile(model, example=x)
    dense = copy.deepcopy(model)
    dense.a = dense.a.to_dense()
    torch.testing.assert_close(fast(x), dense(x), rtol=1e-5, atol=1e-5)


def test_a_convolution_whose_weight_is_read_is_not_folded(sparse_wins):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
            self.norm.running_var.fill_(4.0)

        def forward(self, x):
            return self.norm(self.conv(x)), self.conv.weight.sum()

    model, x = Reads().eval(), torch.randn(2, 3, 4, 4)
    fast = compile(model, example=x)
    torch.testing.assert_close(fast(x), model(x))


def test_without_an_example_the_error_says_which_layer_and_what_to_do(sparse_wins):
    fast = compile(pruned())
    with pytest.raises(WeightIsPacked, match=r"^a: .*example="):
        fast(torch.randn(3, 24))


def test_an_example_may_be_arguments_by_name(sparse_wins):
    fast = compile(pruned(), example={"x": torch.randn(3, 24)})
    assert type(fast.a) is nn.Linear


def test_a_use_that_cannot_take_a_stand_in_leaves_what_was_read(sparse_wins):
    class Numpy(Own):
        def forward(self, x):
            if type(self.a.weight) is not nn.Parameter:
                raise TypeError("only Parameters")
            return self.b(F.linear(x, self.a.weight))

    model = Numpy().eval()
    gossamer.sparsify(model, sparsity=0.8)
    x = torch.randn(3, 24)
    fast = compile(model, example=x)
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-5, atol=1e-5)
    assert isinstance(fast.b, PackedLinear)


def packed_layers(sparse_wins):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(32, 5))
    gossamer.sparsify(model, sparsity=0.8)
    x = torch.randn(2, 3, 4, 4)
    return model, compile(model, tokens=2, example=x, inplace=False)


def test_what_the_weight_of_a_packed_layer_answers_and_refuses(sparse_wins):
    model, fast = packed_layers(sparse_wins)
    assert isinstance(fast[0], PackedConv2d)
    for old, new in ((model[0], fast[0]), (model[2], fast[2])):
        weight, true = new.weight, old.weight
        assert isinstance(weight, torch.Tensor)
        assert (weight.dtype, weight.device) == (true.dtype, true.device)
        assert (weight.shape, weight.ndim, weight.size(1)) == (true.shape, true.ndim, true.size(1))
        assert (weight.numel(), len(weight)) == (true.numel(), len(true))
        assert not weight.requires_grad
        assert weight.is_floating_point()
        assert not weight.is_cuda
        assert "weight" not in dict(new.named_parameters())
        assert "weight" not in new.state_dict()
        with pytest.raises(InputError, match="cannot be set"):
            new.weight = nn.Parameter(torch.zeros(true.shape))
        for use in USES.values():
            with pytest.raises(WeightIsPacked, match="example="):
                use(weight)
        assert copy.deepcopy(new).weight.shape == true.shape
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"):
        assert getattr(fast[0], name) == getattr(model[0], name)


USES = {
    "sum": lambda w: w + 1,
    "reversed": lambda w: 1 - w,
    "product": lambda w: torch.ones(1, len(w)) @ w.flatten(1),
    "compare": lambda w: w == 0,
    "item": lambda w: w[0],
    "iterate": list,
    "truth": bool,
    "data": lambda w: w.data,
    "transposed": lambda w: w.T,
    "numpy": lambda w: w.numpy(),
    "list": lambda w: w.tolist(),
    "cast": lambda w: w.to(torch.float64),
    "in place": lambda w: w.mul_(2),
    "norm": lambda w: torch.linalg.norm(w),
    "parameter": nn.Parameter,
    "pointer": lambda w: w.data_ptr(),
    "op": lambda w: torch.ops.aten.mul(w, 2),
    "init": nn.init.zeros_,
}


def test_a_model_that_looks_at_weights_goes_through_torch_compile(sparse_wins):
    class Casts(nn.Module):
        def __init__(self):
            super().__init__()
            self.wo = nn.Linear(24, 8)

        def forward(self, x):
            if isinstance(self.wo.weight, torch.Tensor) and x.dtype != self.wo.weight.dtype:
                x = x.to(self.wo.weight.dtype)
            return self.wo(x)

    model = Casts().eval()
    gossamer.sparsify(model, sparsity=0.8)
    fast, x = compile(model), torch.randn(3, 24).double()
    torch.testing.assert_close(fast(x), model(x).detach(), rtol=1e-5, atol=1e-5)
    traced = torch.compile(fast, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(x), fast(x))


def t5():
    config = T5Config(
        vocab_size=50, d_model=24, d_kv=8, d_ff=40, num_layers=1, num_decoder_layers=1, num_heads=3
    )
    model = T5ForConditionalGeneration(config)
    ids = torch.arange(20).view(2, 10)
    return model, {"input_ids": ids, "decoder_input_ids": ids[:, :4]}, "logits"


def mamba():
    config = MambaConfig(
        vocab_size=50, hidden_size=24, state_size=4, num_hidden_layers=1, time_step_rank=8
    )
    return MambaModel(config), {"input_ids": torch.arange(20).view(2, 10)}, "last_hidden_state"


def vit():
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40,
        image_size=16, patch_size=4,
    )  # fmt: skip
    return ViTModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}, "last_hidden_state"


def clip():
    shared = {
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 1,
        "num_attention_heads": 3,
    }  # fmt: skip
    config = CLIPConfig(
        text_config={**shared, "vocab_size": 50, "eos_token_id": 2},
        vision_config={**shared, "image_size": 16, "patch_size": 4},
        projection_dim=16,
    )
    ids = torch.arange(3, 13).view(2, 5)
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 16, 16)}
    return CLIPModel(config), inputs, "logits_per_image"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("build", [t5, mamba, vit, clip])
@pytest.mark.parametrize("form", ["masked", "compact"])
@pytest.mark.parametrize("has_example", [True, False])
def test_models_that_read_weights_run_compiled(sparse_wins, build, form, has_example):
    torch.manual_seed(0)
    model, inputs, output = build()
    gossamer.sparsify(model.eval(), sparsity=0.8)
    with torch.no_grad():
        expected = model(**inputs)[output]
    if form == "compact":
        gossamer.compact(model)
        if build is not mamba:  # T5, ViT and CLIP look at dtypes only
            with torch.no_grad():
                torch.testing.assert_close(model(**inputs)[output], expected, rtol=1e-4, atol=1e-4)
        assert any(isinstance(module, CompactWeight) for module in model.modules())
    example = inputs if has_example else None
    fast = compile(model, tokens=20, example=example)
    assert any(isinstance(module, PackedLinear) for module in fast.modules())
    if build in (vit, clip) and has_example:
        assert any(isinstance(module, PackedConv2d) for module in fast.modules())
    if build is mamba and not has_example:
        with pytest.raises(WeightIsPacked, match=r"mixer\.dt_proj: .*example="):
            fast(**inputs)
        return
    torch.testing.assert_close(fast(**inputs)[output], expected, rtol=1e-4, atol=1e-4)
    if build is mamba:
        (row,) = [row for row in explain(fast) if row.name.endswith("dt_proj")]
        assert row.why == READ_BY_MODEL
