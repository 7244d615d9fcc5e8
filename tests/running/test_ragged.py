# SPDX-License-Identifier: Apache-2.0
"""Packed tokens: the same result as with masks, and no work for tokens that are gone."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

import gossamer
import gossamer.running.encoder.ragged as ragged
from gossamer.errors import InputError, TargetError
from gossamer.nn.tokens import add_token_pruning, token_encoder
from gossamer.running.encoder import run_packed
from gossamer.running.encoder.ragged import RaggedBatch

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}


def tiny_bert(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    model = BertModel(BertConfig(**SIZES)).to(dtype).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight *= 30
            layer.attention.self.key.weight *= 30
    return model


def inputs(live):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 50, live.shape, generator=generator) * live
    return {"input_ids": ids, "attention_mask": live.long()}


def live_of(lengths, width=0):
    width = max([*lengths, width])
    return torch.arange(width) < torch.tensor(lengths)[:, None]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_packed_equals_masked(data):
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    live = live_of(lengths, data.draw(st.integers(1, 14)))
    if data.draw(st.booleans()):
        live = live.flip(1)
    model = tiny_bert(data.draw(st.integers(0, 3)))
    encoder = add_token_pruning(
        model,
        normalise=data.draw(st.sampled_from(["live", "padded", "received"])),
        dropped=data.draw(st.sampled_from(["zero", "last"])),
    )
    thresholds = data.draw(st.lists(st.floats(0, 0.9), min_size=3, max_size=3))
    with torch.no_grad():
        encoder.thresholds.copy_(torch.tensor(thresholds))
        wanted = model(**inputs(live))
        run_packed(model)
        found = model(**inputs(live))
    torch.testing.assert_close(found.last_hidden_state, wanted.last_hidden_state)
    if live[:, 0].all():
        torch.testing.assert_close(found.pooler_output, wanted.pooler_output)


def test_packed_equals_masked_in_float32_with_many_sequences():
    model = tiny_bert(dtype=torch.float32)
    add_token_pruning(model, 0.12)
    generator = torch.Generator().manual_seed(0)
    live = live_of(torch.randint(1, 39, (64,), generator=generator).tolist())
    with torch.no_grad(), token_encoder(model).recording() as traces:
        wanted = model(**inputs(live)).last_hidden_state
        run_packed(model)
        found = model(**inputs(live)).last_hidden_state
    assert 0.1 < float(traces[0].keep[-1].sum() / live.sum()) < 0.6
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_stock_encoder_runs_packed_and_keeps_its_heads():
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SIZES)).eval()
    batch = inputs(live_of([5, 1, 9, 5]))
    with torch.no_grad():
        wanted = model(**batch).logits
        names = set(model.state_dict())
        run_packed(model)
        torch.testing.assert_close(model(**batch).logits, wanted)
    assert set(model.state_dict()) == names


def test_dropped_tokens_and_padding_are_not_computed():
    model = tiny_bert()
    encoder = add_token_pruning(model, 0.2)
    batch = inputs(live_of([9, 4, 7], width=30))
    with torch.no_grad(), encoder.recording() as traces:
        model(**batch)
    kept = [int(keep.sum()) for keep in traces[0].keep]
    seen = {"attention": [], "ffn": []}
    for layer in run_packed(model).layer:
        layer.attention.self.query.register_forward_hook(
            lambda module, args, output: seen["attention"].append(output.shape[-2])
        )
        layer.intermediate.register_forward_hook(
            lambda module, args, output: seen["ffn"].append(output.shape[-2])
        )
    with torch.no_grad():
        model(**batch)
    assert kept[-1] < 20
    assert seen == {"attention": [20, *kept[:-1]], "ffn": kept}


def test_attention_is_cut_into_bounded_parts(monkeypatch):
    model = tiny_bert()
    add_token_pruning(model, 0.1)
    batch = inputs(live_of([6] * 7 + [3] * 4))
    other = copy.deepcopy(model)
    with torch.no_grad():
        run_packed(model)
        wanted = model(**batch).last_hidden_state
        monkeypatch.setattr(ragged, "_MAX_CHANCES", 2 * 2 * 36)
        run_packed(other)
        torch.testing.assert_close(other(**batch).last_hidden_state, wanted)
    groups = [(g.start, g.sequences, g.tokens) for g in ragged._bounded(_packed([6] * 5), 2)]
    assert groups == [(0, 2, 6), (12, 2, 6), (24, 1, 6)]


def _packed(lengths):
    return RaggedBatch.of(live_of(lengths))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_rows_stay_in_order_within_their_sequence(data):
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    live = live_of(lengths, 7)
    batch = RaggedBatch.of(live)
    alive = live.clone()
    for _ in range(3):
        count = len(batch.places)
        drawn = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
        kept = torch.tensor(drawn, dtype=torch.bool)
        for group in batch.groups():
            kept[group.rows].view(group.sequences, group.tokens)[:, 0] = True
        before = batch.places
        batch, index = batch.keep(kept)
        assert torch.equal(before[index], batch.places)
        alive.view(-1)[before[~kept]] = False
        assert batch.lengths.tolist() == sorted(alive.sum(1).tolist())
        rows = 0
        for group in batch.groups():
            places = batch.places[group.rows].view(group.sequences, group.tokens)
            assert bool((places // 7 == places[:, :1] // 7).all())
            assert bool((places.diff(dim=1) > 0).all())
            rows += places.numel()
        assert rows == int(alive.sum())
        assert torch.equal(batch.places.sort().values, alive.flatten().nonzero().flatten())


@pytest.mark.parametrize("put", [run_packed, add_token_pruning])
@pytest.mark.parametrize("path", ["", "layer.0", "layer.1.attention", "layer.1.attention.self"])
def test_hooks_on_modules_that_are_not_called_any_more_are_refused(put, path):
    model = tiny_bert()
    encoder = next(m for m in model.modules() if type(m).__name__ == "BertEncoder")
    encoder.get_submodule(path).register_forward_hook(lambda *_: None)
    with pytest.raises(TargetError, match="a forward hook, and the module would not be called"):
        put(model)
    assert any(module is encoder for module in model.modules())


def test_what_is_refused():
    model = tiny_bert()
    run_packed(model)
    with pytest.raises(TargetError, match="packed already"):
        run_packed(model)
    with pytest.raises(TargetError, match="found 0"):
        run_packed(nn.Linear(2, 2))
    with pytest.raises(InputError, match="no token"):
        model(**inputs(live_of([2, 0])))
    model.train()
    with pytest.raises(InputError, match="dropout"):
        model(**inputs(live_of([2])))


@pytest.mark.parametrize("packed", [False, True])
def test_compiling_keeps_what_drops_tokens(packed, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    model = tiny_bert(dtype=torch.float32)
    add_token_pruning(model, 0.2)
    gossamer.sparsify(model, sparsity=0.9)
    gossamer.compact(model)
    batch = inputs(live_of([9, 4, 7, 30]))
    with torch.no_grad():
        wanted = model(**batch).last_hidden_state
        if packed:
            run_packed(model)
        fast = gossamer.compile(model, tokens=(128,))
        found = fast(**batch).last_hidden_state
    assert type(fast.encoder) is type(model.encoder)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert bool((wanted[3] == 0).all(dim=1).any())  # tokens really are dropped
