# SPDX-License-Identifier: Apache-2.0
"""Qwen3: the layers of Llama, with a norm of every head of queries and keys."""

from dataclasses import replace

from gossamer.nn.families.family import GgufNames, MixtureFacts
from gossamer.nn.families.llama import (
    GGUF_HEAD_NORMS,
    GROWN_HEAD_NORMS,
    LLAMA_HEAD_NORMS,
    LLAMA_WINDOW,
    llama_like,
)

FAMILY = replace(
    llama_like(
        "Qwen3",
        "qwen3",
        "Qwen3",
        decoder={"head_norms": LLAMA_HEAD_NORMS, "window": LLAMA_WINDOW},
        growth={"inside": GROWN_HEAD_NORMS},
    ),
    gguf=GgufNames("qwen3", "Qwen3ForCausalLM", more=GGUF_HEAD_NORMS),
    mixtures=(
        MixtureFacts(
            "transformers",
            "Qwen3Moe",
            "num_experts",
            "moe_intermediate_size",
            fixed={"norm_topk_prob": True},
            needs={"attention_bias": False},
        ),
    ),
)
