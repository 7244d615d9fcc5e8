# SPDX-License-Identifier: Apache-2.0
"""gguf files of transformers models, with the writer and the names of the package gguf.

What llama.cpp's converter does to weights is said here once more: rows of queries and keys in
pairs, 1 added to the norms of Gemma, GPT-2 turned round, GPT-NeoX in three parts.
"""

import gguf
import numpy as np
import transformers


def in_pairs(weight, heads):
    """Halves of a head to pairs: row i next to row i + half."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def in_parts(name, weight):
    """The tensors that the file has for one; gate and up of experts lie in one, [E, 2 F, D]."""
    if not name.endswith("experts.gate_up_proj"):
        yield name + ("" if name.endswith((".weight", ".bias")) else ".weight"), weight
        return
    for part, half in zip(("gate_proj", "up_proj"), np.split(weight, 2, axis=1), strict=True):
        yield name.replace("gate_up_proj", part) + ".weight", half


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


def write_gguf(model, architecture, path, change=lambda writer: None, quantise=None):
    """The file of a model.

    Args:
        model: of transformers.
        architecture: what gguf files call its family.
        path: where it goes.
        change: called with the writer before tensors are added.
        quantise: type of matrices, by the beginning of the last part of their module's name; the
            first that fits. One type: of all. None: fp32.
    """
    types = quantise if isinstance(quantise, dict) else {"": quantise}
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    _add_sizes(writer, config, architecture)
    change(writer)
    kind = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    done = {}  # layers that are one and the same are converted once
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, of_part in in_parts(name, weight.numpy()):
            key = (of_part.ctypes.data, part.split(".")[-2])
            if key not in done:
                stored = as_converted(part, of_part, config, architecture)
                stored = np.ascontiguousarray(stored)
                # Routers stay exact, as the converter leaves them.
                exact = stored.ndim < 2 or part.endswith("mlp.gate.weight")
                kind = next(kind for start, kind in types.items() if key[1].startswith(start))
                if kind is None or exact:
                    done[key] = stored, None
                else:
                    done[key] = gguf.quants.quantize(stored, kind), kind
            in_file = names.get_name(part, try_suffixes=(".weight", ".bias"))
            stored, kind = done[key]
            writer.add_tensor(in_file, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer, config, architecture):
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    ffn = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", config.num_attention_heads))
    if architecture == "olmoe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    eps = [getattr(config, n, None) for n in ("layer_norm_eps", "layer_norm_epsilon")]
    if any(eps):
        writer.add_layer_norm_eps(next(filter(None, eps)))
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_rope(writer, config, head_dim)
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


def _add_rope(writer, config, head_dim):
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        return
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
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
