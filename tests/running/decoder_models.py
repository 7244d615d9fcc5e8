"""Tiny models of every family that the native decoder runs: odd sizes, windows inside."""

import torch
import transformers

VOCAB = 67
CONTEXT = 96
_SIZES = {
    "vocab_size": VOCAB,
    "num_hidden_layers": 3,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA = {
    "hidden_size": 36,
    "intermediate_size": 70,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
_WIDE = _LLAMA | {"head_dim": 10}


def _rope(rope_type, **settings):
    return _WIDE | {
        "rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, **settings}
    }


# Name -> class and settings. Windows end inside, at and behind a block of 32 keys.
FAMILIES = {
    "llama": ("LlamaForCausalLM", _WIDE | {"tie_word_embeddings": True}),
    "llama3 rope": (
        "LlamaForCausalLM",
        _rope(
            "llama3",
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "linear rope": ("LlamaForCausalLM", _rope("linear")),
    "dynamic rope": ("LlamaForCausalLM", _rope("dynamic")),
    "yarn rope": ("LlamaForCausalLM", _rope("yarn", original_max_position_embeddings=32)),
    "qwen2": (
        "Qwen2ForCausalLM",
        _LLAMA | {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
    ),
    "mistral": ("MistralForCausalLM", _WIDE | {"sliding_window": 7}),
    "qwen3": ("Qwen3ForCausalLM", _WIDE | {"tie_word_embeddings": True}),
    "phi3": (
        "Phi3ForCausalLM",
        _LLAMA
        | {
            "sliding_window": 32,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.67,
            },
        },
    ),
    "phi3 longrope": (
        "Phi3ForCausalLM",
        _LLAMA
        | {
            "original_max_position_embeddings": CONTEXT,
            "max_position_embeddings": 4 * CONTEXT,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.5, 2.0],
                "long_factor": [2.0, 3.0, 4.0],
            },
        },
    ),
    "gemma": ("GemmaForCausalLM", _WIDE),
    "gemma2": (
        "Gemma2ForCausalLM",
        _WIDE
        | {
            "sliding_window": 33,
            "query_pre_attn_scalar": 14,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        _WIDE
        | {
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", _LLAMA),
    "smollm3": ("SmolLM3ForCausalLM", _LLAMA | {"no_rope_layer_interval": 2}),
    "granite": (
        "GraniteForCausalLM",
        _LLAMA
        | {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.5,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
        },
    ),
    "mixtral": (
        "MixtralForCausalLM",
        _WIDE | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 33},
    ),
    "mixtral of one": (
        "MixtralForCausalLM",
        _LLAMA | {"num_local_experts": 1, "num_experts_per_tok": 1},
    ),
    # Blocks 0 and 2 are dense; one expert sees all tokens, and has a size of its own.
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        _LLAMA
        | {
            "num_experts": 6,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 22,
            "shared_expert_intermediate_size": 130,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 33,
            "max_window_layers": 1,
        },
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        _WIDE
        | {
            "num_experts": 9,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 22,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
        },
    ),
    "olmoe": ("OlmoeForCausalLM", _LLAMA | {"num_experts": 7, "num_experts_per_tok": 3}),
    "gpt-neox": (
        "GPTNeoXForCausalLM",
        {
            "hidden_size": 36,
            "intermediate_size": 70,
            "num_attention_heads": 3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "gpt-neox in a row": (
        "GPTNeoXForCausalLM",
        {
            "hidden_size": 36,
            "intermediate_size": 70,
            "num_attention_heads": 3,
            "use_parallel_residual": False,
            "hidden_act": "gelu_new",
        },
    ),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 36, "ffn_dim": 70, "num_attention_heads": 3, "word_embed_proj_dim": 36},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "n_embd": 36,
            "n_head": 4,
            "n_positions": CONTEXT,
            "n_layer": 3,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
}


def make_model(name, **settings):
    """A model with weights large enough that its logits differ, norms and biases included."""
    kind, fields = FAMILIES[name]
    kind = getattr(transformers, kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = kind.config_class(**(_SIZES | fields | settings))
        config._experts_implementation = "eager"  # the others refuse odd sizes
        model = kind(config)
        for parameter_name, parameter in model.requires_grad_(False).named_parameters():
            if "norm" in parameter_name or ".ln_" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0, 0.2)
    return model.eval()
