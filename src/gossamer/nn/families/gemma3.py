# SPDX-License-Identifier: Apache-2.0
"""Gemma 3, the text model: Gemma 2 with norms of heads and frequencies for local layers."""

from dataclasses import replace

from gossamer.nn.families.family import ClassNames, GgufNames
from gossamer.nn.families.gemma2 import (
    GEMMA2_GROWTH,
    GEMMA_BLOCK,
    GEMMA_DECODER,
    GEMMA_GGUF_FIXED,
    GEMMA_GGUF_NORMS,
    GEMMA_GGUF_SETTINGS,
    GEMMA_OUTER_NORMS,
    GEMMA_REASONS,
)
from gossamer.nn.families.llama import (
    GGUF_HEAD_NORMS,
    GROWN_HEAD_NORMS,
    LLAMA_HEAD_NORMS,
    llama_like,
)

FAMILY = replace(
    llama_like(
        "Gemma 3",
        "gemma3",
        "Gemma3",
        block=GEMMA_BLOCK,
        decoder=GEMMA_DECODER
        | {"head_norms": LLAMA_HEAD_NORMS, "rotary_by_type": "self_attn.layer_type"},
        growth=GEMMA2_GROWTH | {"inside": GEMMA_OUTER_NORMS | GROWN_HEAD_NORMS},
    ),
    classes=ClassNames(
        "gemma3_text",
        "Gemma3",
        ("TextModel", "ForCausalLM"),
        activation="hidden_activation",
        config="Gemma3TextConfig",
    ),
    gguf=GgufNames(
        "gemma3",
        "Gemma3ForCausalLM",
        more=GEMMA_GGUF_NORMS | GGUF_HEAD_NORMS,
        settings=GEMMA_GGUF_SETTINGS,
        fixed=GEMMA_GGUF_FIXED,
        local_theta=10000.0,
        wide_scale_at=62,
    ),
    **GEMMA_REASONS,
)
