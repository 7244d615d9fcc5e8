import pytest
import torch

import gossamer
from gossamer.errors import TargetError
from gossamer.nn.surgery.matrix_layers import conv1d_paths, conv1d_to_linear

transformers = pytest.importorskip("transformers")
from transformers.pytorch_utils import Conv1D  # noqa: E402  (an optional package)


def gpt2(num_layers=2):
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=32, n_embd=24, n_layer=num_layers, n_head=3
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(config).eval()


def logits(model, ids):
    with torch.inference_mode():
        return model(input_ids=ids).logits


def test_a_linear_computes_what_the_conv1d_did():
    model, ids = gpt2(), torch.randint(0, 40, (2, 9))
    before = logits(model, ids)
    bias = model.transformer.h[0].mlp.c_fc.bias
    assert len(conv1d_paths(model)) == 8
    assert conv1d_to_linear(model) is model
    assert conv1d_paths(model) == []
    layer = model.transformer.h[0].mlp.c_fc
    assert (layer.out_features, layer.in_features) == (96, 24)
    assert layer.bias is bias
    assert layer.weight.requires_grad
    torch.testing.assert_close(logits(model, ids), before, rtol=0, atol=1e-5)


def test_hooks_stay_and_a_forward_of_its_own_is_refused():
    model, seen = gpt2(1), []
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Conv1D)}
    handle = next(iter(layers.values())).register_forward_hook(lambda *_: seen.append(1))
    conv1d_to_linear(model)
    logits(model, torch.tensor([[1, 2]]))
    handle.remove()
    logits(model, torch.tensor([[1, 2]]))
    assert len(seen) == 1
    model = gpt2(1)
    layer = next(module for module in model.modules() if isinstance(module, Conv1D))
    layer.forward = lambda x: x
    with pytest.raises(TargetError, match="forward was replaced"):
        conv1d_to_linear(model)


def test_a_layer_under_two_names_stays_one():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = Conv1D(5, 3)

    model = conv1d_to_linear(Twice())
    assert model.first is model.second
    assert model.first.weight.shape == (5, 3)


def test_other_models_are_left_as_they_are():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4))
    layer = model[0]
    assert conv1d_to_linear(model)[0] is layer


def test_pruning_names_what_to_do_and_then_finds_all_layers():
    model = gpt2()
    with pytest.raises(TargetError, match=r"conv1d_to_linear\(model\)"):
        gossamer.sparsify(model, sparsity=0.5)
    gossamer.sparsify(conv1d_to_linear(model), sparsity=0.5)
    masked = [m for m in model.modules() if isinstance(m, gossamer.nn.MaskedLinear)]
    assert len(masked) == 8
    assert all(float(m.mask().float().mean()) == pytest.approx(0.5) for m in masked)
