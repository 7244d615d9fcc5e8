# SPDX-License-Identifier: Apache-2.0
"""Phi-3 and Phi-4: the layers of Llama, with its projections fused into two matrices."""

from dataclasses import replace

from gossamer.nn.families.family import GGUF_FUSED, GgufNames
from gossamer.nn.families.llama import llama_like

FAMILY = replace(
    llama_like(
        "Phi-3",
        "phi3",
        "Phi3",
        block={
            "projections": ("self_attn.qkv_proj",),
            "expansions": ("mlp.gate_up_proj",),
            "expansion_segments": 2,
            "activation": "mlp.activation_fn",
            "whole": "queries, keys and values are parts of one matrix, of unequal sizes",
        },
        decoder={"window": "self_attn.config.sliding_window"},
        growth={"rows": "unequal", "head_dim": ""},
    ),
    gguf=GgufNames(
        "phi3",
        "Phi3ForCausalLM",
        linears=GGUF_FUSED,
        settings={
            "sliding_window": "attention.sliding_window",
            "original_max_position_embeddings": "rope.scaling.original_context_length",
        },
        partial=True,
        long_rope=True,
    ),
)
