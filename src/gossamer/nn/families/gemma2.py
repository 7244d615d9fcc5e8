# SPDX-License-Identifier: Apache-2.0
"""Gemma 2: norms before and behind every part, soft caps, scaled embeddings, local layers."""

from dataclasses import replace

from gossamer.nn.families.family import ClassNames, GgufNames, Role
from gossamer.nn.families.gemma import GEMMA_GROWTH
from gossamer.nn.families.llama import LLAMA_HEADS, LLAMA_WINDOW, llama_like

GEMMA_BLOCK = {
    "norms": ("input_layernorm", "pre_feedforward_layernorm"),
    "whole": "what a part gives goes through a norm before it is added",
}
_NORMS_OUT = ("post_attention_layernorm", "post_feedforward_layernorm")
GEMMA_DECODER = {
    "norm": "rms + 1",
    "norms_out": _NORMS_OUT,
    "window": LLAMA_WINDOW,
    "embedding_scale": "model.embed_tokens.embed_scale",
    "logits_cap": "config.final_logit_softcapping",
    "requires": (("config.use_bidirectional_attention", False),),
}
GEMMA_REASONS = {
    "chains": "where its logits are capped, so would be what every stage of a pipeline gives",
}
# Norms of what parts give, besides the two that `BlockParts` names.
GEMMA_OUTER_NORMS: dict[str, Role] = dict.fromkeys(_NORMS_OUT, "norm")
GEMMA2_GROWTH = GEMMA_GROWTH | {"norms_out": _NORMS_OUT, "inside": GEMMA_OUTER_NORMS}

GEMMA_GGUF_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA_GGUF_SETTINGS = {
    "sliding_window": "attention.sliding_window",
    "layer_types": "attention.sliding_window_pattern",
    "final_logit_softcapping": "final_logit_softcapping",
}
GEMMA_GGUF_FIXED = {"hidden_activation": "gelu_pytorch_tanh"}

FAMILY = replace(
    llama_like(
        "Gemma 2",
        "gemma2",
        "Gemma2",
        block=GEMMA_BLOCK,
        decoder=GEMMA_DECODER | {"score_cap": "self_attn.attn_logit_softcapping"},
        growth=GEMMA2_GROWTH,
    ),
    classes=ClassNames("gemma2", "Gemma2", LLAMA_HEADS, activation="hidden_activation"),
    gguf=GgufNames(
        "gemma2",
        "Gemma2ForCausalLM",
        more=GEMMA_GGUF_NORMS,
        settings=GEMMA_GGUF_SETTINGS | {"attn_logit_softcapping": "attn_logit_softcapping"},
        fixed=GEMMA_GGUF_FIXED,
        wide_scale_at=46,
    ),
    **GEMMA_REASONS,
)
