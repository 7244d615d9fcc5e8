# SPDX-License-Identifier: Apache-2.0
"""Attention layers: equal to dense ones where the pattern is full, to their papers elsewhere."""

import copy
import math

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError, PatternError
from gossamer.nn.attention import (
    LinformerAttention,
    LSHAttention,
    SparseAttention,
    replace_attention,
)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def dense(batch_first=True, bias=True):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(24, 4, batch_first=batch_first, bias=bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.3)
    return layer


class TestSparseAttention:
    @pytest.mark.parametrize("batch_first", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    def test_full_is_what_torch_computes(self, batch_first, bias):
        layer = dense(batch_first, bias)
        ours = SparseAttention.from_dense(layer, "full")
        x = normal(2, 70, 24)
        memory = normal(2, 70, 24) + 1
        for inputs in ((x, x, x), (x, memory, memory), (x, memory, x)):
            expected = layer(*inputs, need_weights=False)[0]
            torch.testing.assert_close(ours(*inputs)[0], expected, rtol=1e-4, atol=1e-5)

    def test_states_go_both_ways(self):
        layer, ours = dense(), SparseAttention(24, 4, "window:5", batch_first=True)
        ours.load_state_dict(layer.state_dict())
        layer.load_state_dict(ours.state_dict())
        x = normal(1, 20, 24)
        near = torch.arange(20)[:, None] - torch.arange(20)
        expected = layer(x, x, x, attn_mask=near.abs() > 2, need_weights=False)[0]
        torch.testing.assert_close(ours(x)[0], expected, rtol=1e-4, atol=1e-5)

    def test_padding_and_causality_are_torchs(self):
        layer = dense()
        ours = SparseAttention.from_dense(layer, "full")
        x = normal(2, 70, 24)
        padding = torch.arange(70) >= torch.tensor([70, 40])[:, None]
        mask = nn.Transformer.generate_square_subsequent_mask(70)
        expected = layer(
            x, x, x, key_padding_mask=padding, attn_mask=mask == -math.inf, need_weights=False
        )[0]
        found = ours(x, key_padding_mask=padding, attn_mask=mask, is_causal=True)[0]
        kept = ~padding
        torch.testing.assert_close(found[kept], expected[kept], rtol=1e-4, atol=1e-5)

    def test_grouped_queries_train(self):
        layer = SparseAttention(
            32, 4, "sinks:2+window:8", causal=True, kv_heads=2, alibi=True, batch_first=True
        )
        assert layer.in_proj_weight.shape == (64, 32)
        target, x = normal(2, 100, 32), normal(2, 100, 32)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
        losses = []
        for _ in range(8):
            loss = (layer(x)[0] - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]

    def test_global_tokens_have_projections_of_their_own(self):
        layer = SparseAttention(24, 4, "window:6+global:3", batch_first=True, global_tokens=3)
        plain = SparseAttention(24, 4, "window:6+global:3", batch_first=True)
        plain.load_state_dict(layer.state_dict(), strict=False)
        x = normal(2, 70, 24)
        torch.testing.assert_close(layer(x)[0], plain(x)[0])
        with torch.no_grad():
            layer.global_proj.weight += normal(72, 24)
        found = layer(x)[0]
        torch.testing.assert_close(found[:, 3:], plain(x)[0][:, 3:])
        own = dense()
        own.load_state_dict(plain.state_dict())
        with torch.no_grad():
            own.in_proj_weight.copy_(layer.global_proj.weight)
        torch.testing.assert_close(
            found[:, :3], own(x, x, x, need_weights=False)[0][:, :3], rtol=1e-4, atol=1e-5
        )

    def test_dropout_only_while_training(self):
        layer = SparseAttention(24, 4, dropout=0.5, batch_first=True)
        x = normal(1, 30, 24)
        assert not torch.equal(layer(x)[0], layer(x)[0])
        layer.eval()
        assert torch.equal(layer(x)[0], layer(x)[0])

    def test_copies_and_texts(self):
        layer = SparseAttention(24, 4, ["window:5", "full"])
        assert "window:5; full" in repr(copy.deepcopy(layer))
        assert gossamer.nn.SparseAttention is SparseAttention

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda: SparseAttention(24, 5), "heads that divide"),
            (lambda: SparseAttention(24, 4, ["full"] * 3), "3 patterns for 4 heads"),
            (lambda: SparseAttention(24, 4, "windw:3"), "did you mean"),
            (lambda: SparseAttention(24, 4, causal=True, global_tokens=1), "cannot be causal"),
            (lambda: SparseAttention(24, 4)(normal(3, 1, 24), need_weights=True), "never exist"),
            (
                lambda: SparseAttention(24, 4)(normal(3, 1, 24), attn_mask=torch.zeros(3, 3)),
                "Say it in the pattern",
            ),
            (
                lambda: SparseAttention(24, 4)(
                    normal(3, 1, 24), key_padding_mask=torch.tensor([[True, False, False]])
                ),
                "Pad on the right",
            ),
            (
                lambda: SparseAttention.from_dense(nn.MultiheadAttention(24, 4, kdim=3), "full"),
                "has no sparse form",
            ),
        ],
    )
    def test_mistakes_get_a_sentence(self, change, said):
        with pytest.raises((InputError, PatternError), match=said):
            change()


class TestLinformer:
    @pytest.mark.parametrize("shared", [False, True])
    def test_is_the_formula(self, shared):
        layer = LinformerAttention(24, 4, length=70, projected=9, shared=shared)
        for tokens in (1, 33, 70):
            x = normal(2, tokens, 24)
            q, k, v = layer.in_proj(x).chunk(3, dim=-1)
            e = layer.key_proj[:, :tokens]
            f = e if shared else layer.value_proj[:, :tokens]
            q, k, v = (t.view(2, -1, 4, 6).transpose(1, 2) for t in (q, e @ k, f @ v))
            weight = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(6), -1)
            expected = layer.out_proj((weight @ v).transpose(1, 2).flatten(2))
            torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)

    def test_what_cannot_be_is_refused(self):
        with pytest.raises(InputError, match="cannot be causal"):
            LinformerAttention(24, 4, 70, causal=True)
        with pytest.raises(InputError, match="projections are for 70"):
            LinformerAttention(24, 4, 70, 9)(normal(1, 71, 24))
        with pytest.raises(InputError, match="1 to length"):
            LinformerAttention(24, 4, 70)


def shared_full(layer, x, causal):
    """Attention of shared queries and keys over all pairs, to itself only if alone."""
    q, v = (
        p(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for p in (layer.qk_proj, layer.v_proj)
    )
    k = q / q.norm(dim=-1, keepdim=True)
    score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    tokens = x.shape[1]
    score = score - 1e5 * torch.eye(tokens)
    if causal:
        behind = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        score = score.masked_fill(behind, -math.inf)
    return layer.out_proj((torch.softmax(score, -1) @ v).transpose(1, 2).flatten(2))


class TestLSH:
    @pytest.mark.parametrize("causal", [False, True])
    def test_one_chunk_is_full_attention(self, causal):
        layer = LSHAttention(24, 4, chunk=100, rounds=3, causal=causal)
        x = normal(2, 90, 24)
        torch.testing.assert_close(layer(x), shared_full(layer, x, causal), rtol=1e-4, atol=1e-5)

    def test_more_rounds_come_closer(self):
        x = normal(1, 512, 16)
        errors = []
        for rounds in (1, 4, 16):
            torch.manual_seed(0)
            layer = LSHAttention(16, 2, chunk=32, rounds=rounds, seed=0)
            with torch.no_grad():
                layer.qk_proj.weight *= 4  # some keys are near, and hashing finds those
            errors.append((layer(x) - shared_full(layer, x, False)).square().mean().item())
        assert errors[0] > errors[1] > errors[2]

    def test_causal_rows_see_nothing_later(self):
        layer = LSHAttention(24, 4, chunk=16, rounds=2, causal=True, seed=3)
        x = normal(1, 200, 24).requires_grad_()
        out = layer(x)
        (grad,) = torch.autograd.grad(out[0, 90].sum(), x)
        assert (grad[0, 91:] == 0).all()
        assert (grad[0, :90] != 0).any()

    def test_buckets_are_directions(self):
        layer = LSHAttention(24, 4, chunk=8, rounds=5, seed=1)
        q = normal(1, 4, 64, 6)
        buckets = layer.buckets(q)
        assert buckets.shape == (1, 4, 5, 64)
        assert int(buckets.max()) < 8
        assert torch.equal(buckets, layer.buckets(q * 7))
        opposite = layer.buckets(-q)
        assert ((buckets - opposite).abs() == 4).all()

    @pytest.mark.parametrize("tokens", [0, 1, 5])
    def test_short_sequences(self, tokens):
        layer = LSHAttention(24, 4, chunk=4, rounds=2, causal=True)
        out = layer(normal(2, tokens, 24))
        assert out.shape == (2, tokens, 24)
        assert out.isfinite().all()

    def test_mistakes_get_a_sentence(self):
        with pytest.raises(InputError, match="do not divide"):
            LSHAttention(24, 5)
        with pytest.raises(InputError, match="at least 1"):
            LSHAttention(24, 4, rounds=0)


class TestReplacing:
    def test_encoders_of_torch(self):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(24, 4, 32, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        x = normal(2, 70, 24)
        expected = model(x)
        before = dict(model.named_parameters())
        names = replace_attention(model, "full")
        assert names == ["layers.0.self_attn", "layers.1.self_attn"]
        assert all(before[name] is p for name, p in model.named_parameters())
        with torch.no_grad():
            torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        replace_attention(model, "window:2", layers=lambda name: name.startswith("layers.1"))
        with torch.no_grad():
            assert not torch.allclose(model(x), expected, atol=1e-3)
        assert isinstance(model.layers[0].self_attn, nn.MultiheadAttention)

    def test_nothing_to_replace(self):
        with pytest.raises(InputError, match="found no attention"):
            replace_attention(nn.Linear(3, 3), "full")
