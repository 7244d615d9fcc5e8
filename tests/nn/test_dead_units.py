# SPDX-License-Identifier: Apache-2.0
"""Heads and filters that nothing reads are cut out of transformers; masks and optimizer follow."""

import copy

import pytest
import torch

import gossamer
from gossamer.errors import TargetError
from gossamer.nn.surgery.dead_units import cut_dead_units
from gossamer.nn.surgery.slimming import find_groups, unit_counts
from gossamer.zoo import GPT, TinyEncoder

IDS = torch.arange(24).view(2, 12)


def gpt():
    torch.manual_seed(0)
    return GPT(40, width=16, num_heads=4, num_layers=2, context=16).double().eval()


def encoder():
    torch.manual_seed(0)
    return TinyEncoder(40, 3, width=16, num_heads=4, num_layers=2, ffn_width=32).double().eval()


def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=4, n_inner=32
    )
    return transformers.GPT2Model(config).double().eval()


def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaModel(config).double().eval()


def said(model):
    result = model(IDS)
    return result if isinstance(result, torch.Tensor) else result.last_hidden_state


def kill(model, step=2):
    """Zero the columns that read every `step`th unit."""
    with torch.no_grad():
        for group in find_groups(model):
            gone = group.columns(torch.arange(0, group.count, step))
            weight = group.consumer.weight
            (weight.t() if type(group.consumer).__name__ == "Conv1D" else weight)[:, gone] = 0.0
    return model


@pytest.mark.parametrize("make", [gpt, encoder, gpt2, llama])
def test_outputs_stay_and_the_model_is_smaller(make, tmp_path):
    model = kill(make())
    expected, before = said(model), sum(p.numel() for p in model.parameters())
    counts = unit_counts(model)
    left = cut_dead_units(model)
    assert left == [(heads // 2, filters // 2) for heads, filters in counts]
    torch.testing.assert_close(said(model), expected, rtol=1e-12, atol=1e-12)
    assert sum(p.numel() for p in model.parameters()) < before
    model = model.float()
    gossamer.save(model, tmp_path / "slim")
    torch.testing.assert_close(said(gossamer.load(tmp_path / "slim")), said(model))


def test_nothing_dead_is_nothing_cut_and_one_unit_stays():
    model = gpt()
    before = copy.deepcopy(model.state_dict())
    assert cut_dead_units(model) == unit_counts(gpt())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    model = kill(model, step=1)
    expected = said(model)
    assert cut_dead_units(model) == [(1, 1), (1, 1)]
    torch.testing.assert_close(said(model), expected, rtol=1e-12, atol=1e-12)


def test_a_mask_with_other_zeros_is_refused_and_nothing_changes():
    model = gpt()
    gossamer.sparsify(model, sparsity=0.5)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TargetError, match="zeros beside those of whole heads"):
        cut_dead_units(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


BIRD = {"kind": "early_bird", "form": "units", "sparsity": 0.5, "every": 1, "begin": 1, "end": 4}


@pytest.mark.parametrize("budget", ["uniform", "global"])
@pytest.mark.parametrize("make", [gpt, encoder])
def test_early_bird_draws_units_that_can_be_cut(make, budget):
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    whole = copy.deepcopy(model)
    ctl = gossamer.attach(model, {**BIRD, "budget": budget}, optimizer, total_steps=8)

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(IDS).square().mean().backward()
            optimizer.step()

    for _ in range(4):
        steps(1)
        ctl.step()
    assert ctl.is_settled
    model.eval()
    expected = said(model)
    ctl.close()
    counts = cut_dead_units(model, optimizer)
    torch.testing.assert_close(said(model), expected, rtol=1e-12, atol=1e-12)
    full = unit_counts(whole)
    if budget == "uniform":
        assert counts == [(heads // 2, filters // 2) for heads, filters in full]
    for kind in (0, 1):
        assert sum(c[kind] for c in counts) == sum(c[kind] for c in full) // 2
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    for parameter in model.parameters():
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape
    model.train()
    steps(2)


def test_units_need_blocks_and_targets():
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    with pytest.raises(TargetError, match="no blocks of a known family"):
        gossamer.attach(plain, BIRD, optimizer, total_steps=8)
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TargetError, match="is no target"):
        gossamer.attach(model, {**BIRD, "ignore": ["*down"]}, optimizer, total_steps=8)
