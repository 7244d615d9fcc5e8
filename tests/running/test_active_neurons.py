# SPDX-License-Identifier: Apache-2.0
"""Blocks with ReLUs on their active neurons: found, measured, equal."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import gossamer
from gossamer.errors import InputError, TargetError
from gossamer.nn.relufication import relufy
from gossamer.ops.timing import Duel
from gossamer.running.layers import neurons, use_active_neurons
from gossamer.running.layers.neurons import ActiveNeurons, reused_neurons


@pytest.fixture
def active_wins(monkeypatch):
    monkeypatch.setattr(neurons, "duel", lambda stock, active: (active(), Duel(100.0, 20.0))[1])


def llama(shift=0.05):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=72, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    relufy(model, shift)
    return model


def run(model):
    model(torch.randint(0, 50, (1, 20), generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("shift", [0.0, 0.05])
@pytest.mark.parametrize("pruned", [False, True])
def test_a_relufied_llama_gives_the_same(active_wins, shift, pruned):
    model = llama(shift)
    if pruned:
        gossamer.sparsify(model, sparsity=0.5)
    ids = torch.randint(0, 50, (1, 3))
    many = torch.randint(0, 50, (2, 9))
    with torch.inference_mode():
        wanted, wanted_many = model(ids).logits, model(many).logits
        choices = use_active_neurons(model, run)
        assert len(choices) == 2
        assert all(choice.active and 0 < choice.zeros < 1 for choice in choices)
        assert sum(isinstance(module, ActiveNeurons) for module in model.modules()) == 2
        torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(many).logits, wanted_many, rtol=0, atol=0)


def test_a_plain_block_with_biases(active_wins):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 60), nn.ReLU(), nn.Linear(60, 16))
    holder = nn.ModuleDict({"block": model})
    x = torch.randn(2, 16)
    with torch.inference_mode():
        wanted = model(x)
        use_active_neurons(holder, lambda m: m["block"](torch.randn(8, 16)))
        torch.testing.assert_close(holder["block"](x), wanted, rtol=1e-5, atol=1e-6)


def test_stock_stays_where_it_is_faster(monkeypatch):
    monkeypatch.setattr(neurons, "duel", lambda stock, active: Duel(20.0, 100.0))
    model = llama()
    assert not any(choice.active for choice in use_active_neurons(model, run))
    assert not any(isinstance(module, ActiveNeurons) for module in model.modules())


def test_refusals(active_wins):
    with pytest.raises(TargetError, match="no feed-forward block with ReLU"):
        use_active_neurons(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), run)
    with pytest.raises(InputError, match="did not reach"):
        use_active_neurons(llama(), lambda model: None)
    model = llama()
    handle = model.model.layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(TargetError, match=r"mlp\.up_proj would not be called any more"):
        use_active_neurons(model, run)
    handle.remove()
    use_active_neurons(model, run)
    with pytest.raises(InputError, match="for inference"):
        model.model.layers[0].mlp(torch.randn(1, 1, 32, requires_grad=True))


def test_tokens_after_a_window_read_its_neurons_only(active_wins):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 60), nn.ReLU(), nn.Linear(60, 16))
    holder = nn.ModuleDict({"block": block})
    gate, down = block[0], block[2]
    tokens = torch.randn(12, 1, 16)
    with torch.inference_mode():
        use_active_neurons(holder, lambda m: m["block"](torch.randn(8, 16)))
        assert isinstance(holder["block"], ActiveNeurons)
        with reused_neurons(holder, window=2, reuse=3):
            found = [holder["block"](x) for x in tokens]
        for at, x in enumerate(tokens):
            h = gate(x).double().relu()
            first = at // 5 * 5
            if at - first >= 2:
                h = h * (gate(tokens[first : first + 2]) > 0).any(0)
            wanted = (h @ down.weight.double().T + down.bias).float()
            torch.testing.assert_close(found[at], wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(holder["block"](tokens[4]), down(gate(tokens[4]).relu()))
    assert holder["block"].memory is None


def test_reuse_is_refused_where_nothing_can_be_reused(active_wins):
    model = llama()
    with pytest.raises(TargetError, match="use_active_neurons first"), reused_neurons(model, 1, 1):
        pass
    use_active_neurons(model, run)
    with pytest.raises(InputError, match="window must be 1 or more"), reused_neurons(model, 0, 1):
        pass
