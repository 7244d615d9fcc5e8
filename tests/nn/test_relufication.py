# SPDX-License-Identifier: Apache-2.0
"""Activations become ReLU in every family, shifts give the zeros asked for, all can be undone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
)

import gossamer
from gossamer.errors import InputError, TargetError
from gossamer.nn.relufication import (
    ShiftedReLU,
    choose_shifts,
    find_feed_forward,
    fold_shifts,
    relufy,
    restore_activations,
)
from gossamer.nn.relufication.histogram import Histogram
from gossamer.zoo import TinyEncoder

MODELS = {
    "bert": lambda: BertModel(
        BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                   intermediate_size=32)
    ),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    ),
    "gpt2": lambda: GPT2Model(
        GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    ),
    "llama": lambda: LlamaModel(
        LlamaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=1, intermediate_size=32)
    ),
    "zoo": lambda: TinyEncoder(40, 3, width=16, num_heads=2, ffn_width=32),
    "sequential": lambda: nn.Sequential(
        nn.Embedding(40, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(),
        nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4),
    ),
}  # fmt: skip


@pytest.fixture(params=sorted(MODELS))
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def ids(seed=0, rows=8):
    return torch.randint(1, 40, (rows, 16), generator=torch.Generator().manual_seed(seed))


def call(model, batch):
    return model(batch)


def outputs(model):
    with torch.no_grad():
        found = model(ids())
    return found if isinstance(found, torch.Tensor) else found[0]


def zeros_of(model, batch):
    found = {}
    handles = [
        block.down.register_forward_pre_hook(
            lambda module, args, name=block.name: found.__setitem__(
                name, float((args[0] == 0).float().mean())
            )
        )
        for block in find_feed_forward(model)
    ]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return found


def test_relu_takes_the_place_and_can_be_undone_to_the_bit(model):
    before, state = outputs(model), set(model.state_dict())
    config = getattr(model, "config", None)
    old_config = None if config is None else config.to_dict()
    assert len(find_feed_forward(model)) == 2
    assert max(zeros_of(model, ids()).values()) == 0
    old = relufy(model)
    assert all(type(block.activation) is nn.ReLU for block in find_feed_forward(model))
    assert all(0.2 < part < 0.8 for part in zeros_of(model, ids()).values())
    assert not torch.equal(outputs(model), before)
    assert set(model.state_dict()) == state
    restore_activations(model, old)
    assert torch.equal(outputs(model), before)
    assert config is None or config.to_dict() == old_config


def test_hooks_on_activations_stay():
    model, seen = MODELS["bert"]().eval(), []
    activation = model.encoder.layer[0].intermediate.intermediate_act_fn
    activation.register_forward_hook(lambda *_: seen.append(1))
    relufy(model, 0.1)
    outputs(model)
    fold_shifts(model)
    outputs(model)
    assert len(seen) >= 2


def test_the_configuration_says_relu():
    model = MODELS["bert"]()
    relufy(model)
    again = BertModel(model.config)
    assert type(again.encoder.layer[0].intermediate.intermediate_act_fn).__name__ == "ReLU"


def test_shifts_give_the_zeros_asked_for_on_other_data(model):
    shifts = choose_shifts(model, [ids(seed) for seed in range(1, 9)], call, zeros=0.85)
    assert all(shift > 0 for shift in shifts.values())
    relufy(model, shifts)
    assert all(isinstance(block.activation, ShiftedReLU) for block in find_feed_forward(model))
    for part in zeros_of(model, ids(20, rows=64)).values():
        assert part == pytest.approx(0.85, abs=0.03)
    assert choose_shifts(model, [ids(1)], call, zeros=0.0) == dict.fromkeys(shifts, 0.0)


def test_folded_shifts_compute_the_same(model):
    shifts = choose_shifts(model, [ids(1)], call, zeros=0.8)
    relufy(model, shifts)
    before = outputs(model)
    folded = fold_shifts(model)
    torch.testing.assert_close(outputs(model), before, rtol=1e-5, atol=1e-6)
    assert folded == ([] if isinstance(model, LlamaModel) else list(shifts))
    for block in find_feed_forward(model):
        wanted = ShiftedReLU if isinstance(model, LlamaModel) else nn.ReLU
        assert type(block.activation) is wanted


def test_masked_and_compact_layers_are_found_too():
    torch.manual_seed(0)
    model = MODELS["sequential"]()
    gossamer.sparsify(model, sparsity=0.5)
    assert len(find_feed_forward(model)) == 2
    gossamer.compact(model)
    assert len(find_feed_forward(model)) == 2


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 99),
    fraction=st.floats(0.01, 0.99),
    kind=st.sampled_from(["normal", "laplace", "constant", "few"]),
)
def test_quantiles_match_sorting(seed, fraction, kind):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5000, generator=generator)
    if kind == "laplace":
        x = x.sign() * -(1 - torch.rand(5000, generator=generator)).log()
    elif kind == "constant":
        x = torch.full((50,), 0.25)
    elif kind == "few":
        x = x[:3]
    histogram = Histogram()
    for part in x.split(1000):
        histogram.widen(part)
    for part in x.split(1000):
        histogram.count(part)
    found = histogram.quantile(fraction)
    assert float((x < found - 1e-3).float().mean()) <= fraction + 1e-3
    assert float((x <= found + 1e-3).float().mean()) >= fraction - 1e-3


def test_what_is_refused():
    with pytest.raises(TargetError, match="no feed-forward block"):
        relufy(nn.Linear(3, 3))
    model = MODELS["zoo"]()
    with pytest.raises(InputError, match=r"layers\.0, layers\.1, got none"):
        relufy(model, {})
    for shift in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="0 or more"):
            relufy(model, shift)
    assert type(model.layers[0].activation) is nn.GELU
    with pytest.raises(InputError, match="below 1"):
        choose_shifts(model, [ids()], call, zeros=1.0)
    with pytest.raises(InputError, match="empty"):
        choose_shifts(model, [], call, zeros=0.5)
    old = relufy(MODELS["bert"]())
    with pytest.raises(InputError, match="no block"):
        restore_activations(model, old)
    histogram = Histogram()
    with pytest.raises(InputError, match="NaN"):
        histogram.widen(torch.tensor([float("nan")]))
