# SPDX-License-Identifier: Apache-2.0
"""Feed-forward parts become experts: the same function, and the optimizer goes on."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from gossamer.errors import InputError, TargetError
from gossamer.nn.surgery.mixtures import mixtures_of
from gossamer.training.growth import upcycle
from gossamer.training.optim import AdamW
from gossamer.zoo import GPT

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
IDS = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(0))
MAKERS = {
    "Mixtral": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "Qwen3Moe": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "SwitchGPT": lambda: GPT(61, width=32, num_heads=4, num_layers=2, context=16),
}


def made(name):
    torch.manual_seed(0)
    return MAKERS[name]().double().eval()


def answer(model):
    found = model(IDS)
    return getattr(found, "logits", found)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (2, 2), (4, 2), (3, 3)])
def test_an_upcycled_model_computes_what_the_dense_one_did(name, experts, top_k):
    model = made(name)
    before, kept = answer(model).detach(), dict(model.named_parameters())
    assert upcycle(model, experts=experts, top_k=top_k) is model
    assert type(model).__name__.startswith(name)
    # Routers of transformers compute their softmax in float32.
    tolerance = 1e-12 if name == "SwitchGPT" else 1e-6
    torch.testing.assert_close(answer(model).detach(), before, atol=tolerance, rtol=0)
    for path, parameter in model.named_parameters():
        if path in kept and kept[path].shape == parameter.shape:
            assert parameter is kept[path]


def test_one_expert_of_a_switch_model_is_close_at_first():
    model = made("SwitchGPT")
    before = answer(model).detach()
    upcycle(model, experts=4, top_k=1)
    difference = (answer(model).detach() - before).abs().max()
    # Chances of the drawn router are near 1 / 4, not equal to it, and feed-forward parts are large.
    assert float(difference) < 0.2 * float(before.abs().max())


def test_noise_makes_all_experts_but_the_first_differ():
    model, dense = made("Mixtral"), made("Mixtral")
    upcycle(model, experts=3, noise=0.1)
    up = mixtures_of(model)[0].up.weight.detach().view(3, 96, 32)
    whole = torch.cat(
        [dense.model.layers[0].mlp.gate_proj.weight, dense.model.layers[0].mlp.up_proj.weight]
    ).detach()
    assert torch.equal(up[0], whole)
    change = up[1:] - whole
    assert float(change.std()) == pytest.approx(0.1 * float(whole.std()), rel=0.1)
    assert not torch.equal(up[1], up[2])


@pytest.mark.parametrize("name", ["Mixtral", "SwitchGPT"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, AdamW])
def test_the_optimizer_goes_on_with_the_moments_of_the_parts(name, kind):
    model = made(name).float()
    optimizer = kind(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
    )
    for _ in range(2):
        answer(model).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    block = model.model.layers[0].mlp if name == "Mixtral" else model.blocks[0]
    down = block.down_proj if name == "Mixtral" else block.down
    before = {key: value.clone() for key, value in optimizer.state[down.weight].items()}
    upcycle(model, optimizer, experts=4, top_k=2)
    layer = mixtures_of(model)[0]
    state = optimizer.state[layer.down.weight]
    assert float(state["step"]) == 2
    parts = {key: state[key].view(4, *down.weight.shape) for key in ("exp_avg", "exp_avg_sq")}
    for part in range(4):
        torch.testing.assert_close(parts["exp_avg"][part], before["exp_avg"] / 4)
        torch.testing.assert_close(parts["exp_avg_sq"][part], before["exp_avg_sq"] / 8)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert len(held) == len({id(p) for p in held})
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    answer(model).square().mean().backward()
    optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


def test_what_cannot_be_upcycled_is_said_and_stays_as_it_was():
    model = made("Mixtral")
    before = answer(model).detach()
    with pytest.raises(InputError, match="its router would never learn"):
        upcycle(model, experts=4, top_k=1)
    with pytest.raises(InputError, match=r"top_k must be in \[1, 2\]"):
        upcycle(model, experts=2, top_k=3)
    with pytest.raises(InputError, match="noise must be in"):
        upcycle(model, noise=1.0)
    with pytest.raises(InputError, match="8-bit moments"):
        upcycle(model, AdamW(model.float().parameters(), lr=1e-3, moments="8bit"))
    with pytest.raises(TargetError, match="cannot get experts"):
        upcycle(torch.nn.Linear(4, 4))
    model.double()
    gates = [p for name, p in model.named_parameters() if "gate_proj" in name]
    others = [p for name, p in model.named_parameters() if "gate_proj" not in name]
    optimizer = torch.optim.AdamW([{"params": gates}, {"params": others}], lr=1e-3)
    with pytest.raises(InputError, match="different groups"):
        upcycle(model, optimizer, experts=2)
    assert type(model) is LlamaForCausalLM
    torch.testing.assert_close(answer(model).detach(), before, atol=1e-6, rtol=0)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(gates + others)
