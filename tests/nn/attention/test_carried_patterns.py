# SPDX-License-Identifier: Apache-2.0
"""Patterns of a model survive copies, files and compilation, or are refused; none is dropped."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import ArtifactError, InputError, TargetError
from gossamer.io.artifact import save_compressed_tensors
from gossamer.io.onnx import export_onnx
from gossamer.nn.attention import (
    AttentionState,
    SparseAttention,
    attention_states,
    refuse_patterns,
    replace_attention,
    restore_attention,
)
from gossamer.nn.tokens import add_token_pruning
from gossamer.pruning.structured import find_units
from gossamer.running.decoder import DecoderEngine
from gossamer.training.growth import grow, upcycle
from gossamer.zoo import GPT

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}


def ids(tokens=100):
    return torch.randint(1, 64, (2, tokens), generator=torch.Generator().manual_seed(0))


def stack():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def gpt(**sizes):
    torch.manual_seed(0)
    return GPT(64, width=32, num_heads=4, num_layers=2, context=256, **sizes).eval()


def hf(kind="llama", head="CausalLM", **changes):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    return auto.from_config(config).eval()


def said(model, x):
    with torch.no_grad():
        result = model(x)
    return result if isinstance(result, torch.Tensor) else result[0]


MODELS = {
    "torch": (stack, lambda: torch.randn(2, 100, 32, generator=torch.Generator().manual_seed(1))),
    "zoo": (gpt, ids),
    "llama": (hf, ids),
    "bert": (lambda: hf("bert", ""), ids),
}


@pytest.mark.parametrize("format", ["packed", "dense"])
@pytest.mark.parametrize("kind", MODELS)
def test_files_keep_patterns(kind, format, tmp_path):
    make, data = MODELS[kind]
    model, x = make(), data()
    full = said(model, x)
    names = replace_attention(model, "window:8")
    replace_attention(model, "window:20+sinks:2", layers=lambda name: name == names[1])
    expected = said(model, x)
    assert not torch.allclose(full, expected, atol=1e-3)
    states = attention_states(model)
    assert [states[name].pattern for name in names] == ["window:8", "window:20+sinks:2"]
    torch.testing.assert_close(said(copy.deepcopy(model), x), expected)
    gossamer.save(model, tmp_path / "kept", format=format)
    loaded = gossamer.load(tmp_path / "kept")
    assert attention_states(loaded) == states
    torch.testing.assert_close(said(loaded, x), expected)
    # Into a dense model of the user's.
    filled = make()
    assert gossamer.load(tmp_path / "kept", model=filled) is filled
    assert attention_states(filled) == states
    torch.testing.assert_close(said(filled, x), expected)


def test_a_pruned_model_with_a_pattern_compiles_and_says_the_same(tmp_path):
    model, x = hf("bert", ""), ids()
    replace_attention(model, "window:8")
    gossamer.sparsify(model, sparsity=0.8)
    gossamer.compact(model)
    expected = said(model, x)
    gossamer.save(model, tmp_path / "small")
    fast = gossamer.compile(gossamer.load(tmp_path / "small"), tokens=(100,))
    torch.testing.assert_close(said(fast, x), expected, rtol=1e-4, atol=1e-4)


def test_settings_of_torchs_layers_are_kept_too(tmp_path):
    model = stack()
    replace_attention(model, "window:8+global:3", global_tokens=3, softcap=20.0)
    x = MODELS["torch"][1]()
    expected = said(model, x)
    gossamer.save(model, tmp_path / "kept")
    loaded = gossamer.load(tmp_path / "kept")
    assert loaded.layers[1].self_attn.softcap == 20.0
    torch.testing.assert_close(said(loaded, x), expected)


class Own(nn.Module):
    """A user's class: files do not describe it."""

    def __init__(self, pattern=None):
        super().__init__()
        torch.manual_seed(0)
        heads = nn.MultiheadAttention(32, 4, batch_first=True)
        self.heads = heads if pattern is None else SparseAttention.from_dense(heads, pattern)

    def forward(self, x):
        return self.heads(x, x, x, need_weights=False)[0]


def test_classes_of_users_get_the_pattern_of_the_file(tmp_path):
    x = MODELS["torch"][1]()
    model = Own("window:8").eval()
    expected = said(model, x)
    gossamer.save(model, tmp_path / "kept")
    for other in (Own(), Own("window:8")):
        torch.testing.assert_close(
            said(gossamer.load(tmp_path / "kept", model=other).eval(), x), expected
        )
    with pytest.raises(ArtifactError, match=r"heads: attends to 'window:9'.*'window:8' is asked"):
        gossamer.load(tmp_path / "kept", model=Own("window:9"))


def test_a_file_that_does_not_fit_leaves_the_model_alone(tmp_path):
    model = hf()
    replace_attention(model, "window:8")
    gossamer.save(model, tmp_path / "kept")
    other = hf(hidden_size=64)
    before, implementation = said(other, ids()), other.config._attn_implementation
    with pytest.raises(ArtifactError):
        gossamer.load(tmp_path / "kept", model=other)
    assert not attention_states(other)
    assert other.config._attn_implementation == implementation
    torch.testing.assert_close(said(other, ids()), before)


def test_files_without_patterns_do_not_mention_them(tmp_path):
    gossamer.save(stack(), tmp_path / "dense")
    assert '"attention"' not in (tmp_path / "dense" / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"nowhere": AttentionState("window:8")}, "there is nothing"),
        ({"lm_head": AttentionState("window:8")}, "a Linear, no attention layer"),
        ({"model.layers.0.self_attn": AttentionState("windw:8")}, "did you mean"),
    ],
)
def test_states_that_do_not_fit_are_named(states, message):
    with pytest.raises((TargetError, InputError), match=message):
        restore_attention(hf(), states)


def test_the_native_decoder_runs_windows_and_refuses_the_rest():
    x = ids(60)[:1]
    windowed = hf()
    replace_attention(windowed, "window:16")
    engine = DecoderEngine(windowed, "fp32")
    session = engine.session()
    session.prompt(x[0, :40])
    found = torch.stack([session.append(int(token)) for token in x[0, 40:]])
    torch.testing.assert_close(found, said(windowed, x)[0, 40:], rtol=1e-4, atol=1e-4)
    replace_attention(windowed, "window:16+sinks:4")
    with pytest.raises(InputError, match=r"self_attn attends to 'window:16\+sinks:4'"):
        DecoderEngine(windowed, "fp32")
    mistral = hf("mistral", sliding_window=9)
    replace_attention(mistral, "window:16")
    with pytest.raises(InputError, match="a window of 9 of its own"):
        DecoderEngine(mistral, "fp32")


def test_who_would_lose_a_pattern_says_so(tmp_path):
    bert, decoder, zoo = hf("bert", ""), hf(), gpt()
    for model in (bert, decoder, zoo):
        replace_attention(model, "window:8")
    with pytest.raises(TargetError, match="token pruning looks at the weights of all pairs"):
        add_token_pruning(bert)
    with pytest.raises(InputError, match="Grow first, and give the pattern afterwards"):
        grow(zoo, width=2)
    with pytest.raises(TargetError, match="ONNX has no such attention"):
        export_onnx(bert, {"input_ids": ids()}, tmp_path / "bert.onnx")
    with pytest.raises(TargetError, match="compressed-tensors do not say so"):
        save_compressed_tensors(decoder, tmp_path / "compressed")
    find_units(decoder)
    replace_attention(decoder, "window:8; full")
    with pytest.raises(TargetError, match="the pattern of others"):
        find_units(decoder)
    with pytest.raises(TargetError, match="lost"):
        refuse_patterns(zoo, "it is lost")


@pytest.mark.parametrize("make", [gpt, hf])
def test_models_that_get_experts_keep_their_patterns(make):
    model, x = make(), ids()
    replace_attention(model, "window:8")
    states, expected = attention_states(model), said(model, x)
    upcycle(model, experts=2, top_k=2)
    assert attention_states(model) == states
    torch.testing.assert_close(said(model, x), expected, rtol=1e-4, atol=1e-4)


def test_patterns_of_the_zoo_are_those_of_masked_attention():
    """Against scores in float64 of which all but a window are left out."""
    model, x = gpt().double(), ids(70)
    replace_attention(model, "window:5")
    block = model.blocks[0]
    stream = model.embed(x)
    qkv = block.qkv(block.attention_norm(stream)).unflatten(-1, (3, -1, block.head_dim))
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    distance = torch.arange(70)[:, None] - torch.arange(70)
    scores = q @ k.transpose(-1, -2) / block.head_dim**0.5
    scores = scores.masked_fill((distance < 0) | (distance >= 5), -torch.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(block.attend(stream), stream + block.output(mixed))


def test_more_patterns_than_heads_are_refused_at_once():
    with pytest.raises(gossamer.errors.PatternError, match="3 patterns for 4 heads"):
        replace_attention(hf(), ["full", "window:8", "window:9"])
