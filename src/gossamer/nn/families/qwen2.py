# SPDX-License-Identifier: Apache-2.0
"""Qwen2: the layers of Llama, with biases in the projections."""

from dataclasses import replace

from gossamer.nn.families.llama import llama_like

FAMILY = replace(
    llama_like("Qwen2", "qwen2", "Qwen2"),
    gguf="its gguf files hold biases, which the reader does not know",
)
