# SPDX-License-Identifier: Apache-2.0
"""Llama, and the families whose layers are written like it."""

from dataclasses import replace

from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    DecoderFacts,
    Family,
    GgufNames,
    GrowthFacts,
    transformers_chain,
    transformers_path,
)

LLAMA_HEADS = ("Model", "ForCausalLM", "ForSequenceClassification")


def llama_like(name: str, model_type: str, prefix: str) -> Family:
    """A family whose layers are RMSNorm, rotated halves, grouped queries and SwiGLU."""
    parts = ("layers", "embed_tokens", "norm")
    model, chain = f"{prefix}ForCausalLM", transformers_chain("model", *parts, "lm_head")
    block = BlockParts(
        block=transformers_path(model_type, f"{prefix}DecoderLayer"),
        projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output="self_attn.o_proj",
        attention="self_attn",
        head_dim="self_attn.head_dim",
        expansions=("mlp.gate_proj", "mlp.up_proj"),
        down="mlp.down_proj",
        activation="mlp.act_fn",
        norms=("input_layernorm", "post_attention_layernorm"),
        norm_first=True,
    )
    return Family(
        name=name,
        block=block,
        decoder=DecoderFacts(model, chain, block, rotary="model.rotary_emb"),
        chains={f"{prefix}Model": transformers_chain("", *parts, ""), model: chain},
        classes=ClassNames(model_type, prefix, LLAMA_HEADS, activation="hidden_act"),
        growth=GrowthFacts(
            width=("hidden_size",),
            heads="num_attention_heads",
            kv_heads="num_key_value_heads",
            head_dim="head_dim",
            ffn="intermediate_size",
            layers="num_hidden_layers",
            vocabulary="vocab_size",
            per_layer=("layer_types",),
            roles={
                "embed_tokens": "table",
                "norm": "last norm",
                "lm_head": "head",
                "score": "classifier",
            },
        ),
    )


FAMILY = replace(
    llama_like("Llama", "llama", "Llama"),
    gguf=GgufNames(
        "llama",
        "LlamaForCausalLM",
        norms=("attn_norm", "ffn_norm"),
        linears=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        front=("token_embd",),
        back=("output_norm", "output"),
    ),
)
