# SPDX-License-Identifier: Apache-2.0
"""gguf files of every family, written with the writer and the names of the package gguf.

What llama.cpp's converter does to weights is said here once more: rows of queries and keys in
pairs, 1 added to the norms of Gemma, GPT-2 turned round, GPT-NeoX in three parts. Where
transformers reads an architecture itself, its reader is a second witness.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.errors import ArtifactError
from gossamer.io import load_gguf
from gossamer.io.gguf.header import TENSOR_TYPES
from gossamer.nn.families import answers

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
sys.path.insert(0, str(Path(__file__).parents[1] / "running"))

from decoder_models import CONTEXT, make_model  # noqa: E402

IDS = torch.arange(3, 43).unsqueeze(0)
ARCHITECTURES = {
    "llama": "llama",
    "llama3 rope": "llama",
    "linear rope": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "phi3 longrope": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
    "granite": "granite",
    "gpt-neox": "gptneox",
    "gpt2": "gpt2",
}
LLAMA3 = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "head_dim": 16,
}
# What files cannot hold, or llama.cpp knows in one form only.
CHANGED = {
    "llama3 rope": LLAMA3,
    "qwen2": {"use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 10},
    "gemma3": {"query_pre_attn_scalar": 10},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5, "no_rope_layers": None},
    "gpt2": {"scale_attn_by_inverse_layer_idx": False},
}


def in_pairs(weight, heads):
    """Halves of a head to pairs: row i next to row i + half."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def as_converted(name, weight, config, architecture):
    """A tensor as llama.cpp's converter stores it."""
    part = name.split(".")[-2]
    if architecture in ("llama", "smollm3", "granite") and part in ("q_proj", "k_proj"):
        kv = config.num_key_value_heads
        return in_pairs(weight, kv if part == "k_proj" else config.num_attention_heads)
    if architecture.startswith("gemma") and "norm" in part:
        return weight + 1
    if architecture == "gpt2" and part in ("c_attn", "c_proj", "c_fc") and weight.ndim == 2:
        return weight.T
    if architecture == "gptneox" and part == "query_key_value":
        parts = weight.reshape(config.num_attention_heads, 3, -1, *weight.shape[1:])
        return parts.swapaxes(0, 1).reshape(weight.shape)
    return weight


def write(model, architecture, path, change=lambda writer: None, quantise=None):
    """The file of a model; `quantise` is a type for matrices."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    ffn = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", config.num_attention_heads))
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    eps = [getattr(config, n, None) for n in ("layer_norm_eps", "layer_norm_epsilon")]
    if any(eps):
        writer.add_layer_norm_eps(next(filter(None, eps)))
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_rope(writer, config, head_dim)
    if architecture in ("gemma2", "gemma3", "phi3") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma3":
        pattern = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_sliding_window_pattern(pattern)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture == "gptneox":
        writer.add_parallel_residual(config.use_parallel_residual)
    change(writer)
    kind = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = as_converted(name, weight.numpy(), config, architecture)
        stored = np.ascontiguousarray(stored)
        in_file = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if quantise and stored.ndim == 2:
            raw = gguf.quants.quantize(stored, quantise)
            writer.add_tensor(in_file, raw, raw_shape=raw.shape, raw_dtype=quantise)
        else:
            writer.add_tensor(in_file, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_rope(writer, config, head_dim):
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        return
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(original)
        for which in ("short", "long"):
            factors = np.array(rope[f"{which}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)
    if rope["rope_type"] == "llama3":
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
        plain = rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
        factors = plain / rotary(config).inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


def test_every_architecture_is_here():
    assert set(ARCHITECTURES.values()) == {n.architecture for n in answers("gguf").values()}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_comes_back(tmp_path, name):
    model = make_model(name, **CHANGED.get(name, {}))
    path = write(model, ARCHITECTURES[name], tmp_path / "m.gguf")
    again = load_gguf(path)
    assert type(again) is type(model)
    assert set(again.state_dict()) == set(model.state_dict())
    expected = logits(model)
    assert float((logits(again) - expected).abs().max()) < 1e-5 * float(expected.abs().max())


# Of these, transformers' own reader takes all settings that the model has.
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_transformers_reads_the_same(tmp_path, name):
    model = make_model(name, **CHANGED.get(name, {}))
    path = write(model, ARCHITECTURES[name], tmp_path / "m.gguf")
    other = type(model).from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    ours, theirs = load_gguf(path).state_dict(), other.state_dict()
    for key, weight in theirs.items():
        turned = name == "gpt2" and ".c_" in key and weight.ndim == 2  # a Linear stands there
        torch.testing.assert_close(ours[key].T if turned else ours[key], weight)


def test_quantised_rows_that_are_put_in_order(tmp_path):
    model = make_model("llama", hidden_size=96, intermediate_size=64, head_dim=16)
    kind = gguf.GGMLQuantizationType.Q8_0
    path = write(model, "llama", tmp_path / "m.gguf", quantise=kind)
    found = load_gguf(path).model.layers[1].self_attn.k_proj.weight.detach()
    wanted = model.model.layers[1].self_attn.k_proj.weight
    assert 0 < float((found - wanted).abs().max()) <= float(wanted.abs().max()) / 127


def test_every_type_that_the_package_dequantises_is_read():
    known = {kind.name for kind in gguf.quants._type_traits} | {"F32", "F16"}
    assert known == set(TENSOR_TYPES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.add_sliding_window_pattern([True]), "true or false for each of 3 blocks"),
        (lambda w: w.add_expert_count(4), "expert_count cannot be read"),
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "rope scaling 'yarn'"),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.ones(5, np.float32)),
            "have no place in a Gemma3ForCausalLM",
        ),
        (
            lambda w: w.add_tensor("blk.0.attn_q.bias", np.ones(60, np.float32)),
            "'blk.0.attn_q.bias' has no place in a Gemma3ForCausalLM",
        ),
    ],
)
def test_files_that_say_more_than_can_be_read_are_refused(tmp_path, change, words):
    model = make_model("gemma3", layer_types=["full_attention"] * 3)

    def without_pattern(writer):
        writer.kv_data[0].pop("gemma3.attention.sliding_window_pattern")
        change(writer)

    path = write(model, "gemma3", tmp_path / "m.gguf", without_pattern)
    with pytest.raises(ArtifactError, match=words):
        load_gguf(path, max_bytes=1)


def test_gemma_without_a_pattern_has_that_of_its_class(tmp_path):
    model = make_model("gemma3", layer_types=None, num_hidden_layers=7)
    path = write(
        model,
        "gemma3",
        tmp_path / "m.gguf",
        lambda w: w.kv_data[0].pop("gemma3.attention.sliding_window_pattern"),
    )
    found = load_gguf(path).config
    assert found.layer_types == ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert found.max_position_embeddings == CONTEXT
