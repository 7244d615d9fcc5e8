# SPDX-License-Identifier: Apache-2.0
"""Qwen2: the layers of Llama, with biases in the projections and windows in some layers."""

from dataclasses import replace

from gossamer.nn.families.family import GgufNames
from gossamer.nn.families.llama import LLAMA_WINDOW, QWEN2_MOE, llama_like

FAMILY = replace(
    llama_like("Qwen2", "qwen2", "Qwen2", decoder={"window": LLAMA_WINDOW}),
    gguf=GgufNames("qwen2", "Qwen2ForCausalLM"),
    mixtures=(
        replace(
            QWEN2_MOE,
            fixed={"norm_topk_prob": True, "qkv_bias": True},
            needs={"use_sliding_window": False},
        ),
    ),
)
