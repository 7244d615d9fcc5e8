# SPDX-License-Identifier: Apache-2.0
"""Qwen2-MoE: the layers of Qwen2, with experts, and one beside them that sees all tokens."""

from gossamer.nn.families.family import ExpertFacts, Family
from gossamer.nn.families.llama import LLAMA_WINDOW, mixture_like

FAMILY: Family = mixture_like(
    "Qwen2-MoE",
    "qwen2_moe",
    "Qwen2Moe",
    ExpertFacts(
        "mlp.gate",
        "mlp.experts",
        normalised="mlp.gate.norm_topk_prob",
        shared="mlp.shared_expert",
        shared_gate="mlp.shared_expert_gate",
    ),
    {"window": LLAMA_WINDOW, "window_in_some": True},
)
