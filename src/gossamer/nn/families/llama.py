# SPDX-License-Identifier: Apache-2.0
"""Llama, and the families whose layers are written like it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    DecoderFacts,
    ExpertFacts,
    Family,
    GgufNames,
    GrowthFacts,
    MixtureFacts,
    Role,
    transformers_chain,
    transformers_path,
)

LLAMA_HEADS = ("Model", "ForCausalLM", "ForSequenceClassification")


LLAMA_WINDOW = "self_attn.sliding_window"
LLAMA_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
GROWN_HEAD_NORMS: dict[str, Role] = dict.fromkeys(LLAMA_HEAD_NORMS, "head norm")
GGUF_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


MIXTRAL = MixtureFacts(
    "transformers",
    "Mixtral",
    "num_local_experts",
    "intermediate_size",
    needs={"attention_bias": False, "mlp_bias": False},
)
QWEN2_MOE = MixtureFacts(
    "transformers",
    "Qwen2Moe",
    "num_experts",
    "moe_intermediate_size",
    shared="mlp.shared_expert",
    shared_gate="mlp.shared_expert_gate",
    shared_width="shared_expert_intermediate_size",
    fixed={"norm_topk_prob": True, "qkv_bias": False},
    needs={"attention_bias": False, "mlp_bias": False, "sliding_window": None},
)


def llama_like(
    name: str,
    model_type: str,
    prefix: str,
    *,
    block: Mapping[str, Any] | None = None,
    decoder: Mapping[str, Any] | None = None,
    growth: Mapping[str, Any] | None = None,
) -> Family:
    """A family whose modules are named like those of Llama.

    Args:
        name: what people call it.
        model_type: what config.json calls it.
        prefix: how the names of its classes begin.
        block: in what its `BlockParts` differ.
        decoder: in what its `DecoderFacts` differ.
        growth: in what its `GrowthFacts` differ.
    """
    names = ("layers", "embed_tokens", "norm")
    model, chain = f"{prefix}ForCausalLM", transformers_chain("model", *names, "lm_head")
    parts = BlockParts(
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
    parts = replace(parts, **(block or {}))
    facts = DecoderFacts(model, chain, parts, rotary="model.rotary_emb")
    sizes = GrowthFacts(
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
    )
    return Family(
        name=name,
        block=parts,
        decoder=replace(facts, **(decoder or {})),
        chains={f"{prefix}Model": transformers_chain("", *names, ""), model: chain},
        classes=ClassNames(model_type, prefix, LLAMA_HEADS, activation="hidden_act"),
        growth=replace(sizes, **(growth or {})),
    )


def mixture_like(
    name: str,
    model_type: str,
    prefix: str,
    experts: ExpertFacts,
    decoder: Mapping[str, Any],
) -> Family:
    """A family like Llama that has mixtures of experts, at least in some blocks.

    Args:
        name: what people call it.
        model_type: what config.json calls it.
        prefix: how the names of its classes begin.
        experts: where a block keeps them.
        decoder: in what else its `DecoderFacts` differ.
    """
    whole = "its feed-forward parts are mixtures of experts, which are neither cut nor widened"
    return replace(
        llama_like(name, model_type, prefix, decoder={"experts": experts, **decoder}),
        block=whole,
        chains="the losses of its routers would be lost between the stages of a pipeline",
        classes="transformers' own table finds its classes",
        growth=whole,
    )


FAMILY = replace(
    llama_like("Llama", "llama", "Llama", decoder={"streams": True}),
    gguf=GgufNames("llama", "LlamaForCausalLM", rows="pairs"),
    mixtures=(MIXTRAL, QWEN2_MOE),
)
