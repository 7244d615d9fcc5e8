# SPDX-License-Identifier: Apache-2.0
"""Qwen3-MoE: the layers of Qwen3, with experts."""

from gossamer.nn.families.family import ExpertFacts, Family
from gossamer.nn.families.llama import LLAMA_HEAD_NORMS, LLAMA_WINDOW, mixture_like

FAMILY: Family = mixture_like(
    "Qwen3-MoE",
    "qwen3_moe",
    "Qwen3Moe",
    ExpertFacts("mlp.gate", "mlp.experts", normalised="mlp.gate.norm_topk_prob"),
    {"head_norms": LLAMA_HEAD_NORMS, "window": LLAMA_WINDOW},
)
