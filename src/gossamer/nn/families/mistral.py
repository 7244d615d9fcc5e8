# SPDX-License-Identifier: Apache-2.0
"""Mistral: the layers of Llama, which may attend to a sliding window."""

from dataclasses import replace

from gossamer.nn.families.llama import MIXTRAL, QWEN2_MOE, llama_like

FAMILY = replace(
    llama_like(
        "Mistral", "mistral", "Mistral", decoder={"window": "self_attn.config.sliding_window"}
    ),
    gguf="its gguf files say they are llama and are read as such",
    mixtures=(MIXTRAL, QWEN2_MOE),
)
