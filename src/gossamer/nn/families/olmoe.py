# SPDX-License-Identifier: Apache-2.0
"""OLMoE: the layers of Llama with experts, and norms of all queries and of all keys."""

from gossamer.nn.families.family import ExpertFacts, Family
from gossamer.nn.families.llama import LLAMA_HEAD_NORMS, mixture_like

FAMILY: Family = mixture_like(
    "OLMoE",
    "olmoe",
    "Olmoe",
    ExpertFacts("mlp.gate", "mlp.experts", normalised="mlp.gate.norm_topk_prob"),
    {"head_norms": LLAMA_HEAD_NORMS, "requires": (("config.clip_qkv", False),)},
)
