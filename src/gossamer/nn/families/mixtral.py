# SPDX-License-Identifier: Apache-2.0
"""Mixtral: the layers of Mistral, with experts of which a token has some."""

from gossamer.nn.families.family import ExpertFacts, Family
from gossamer.nn.families.llama import mixture_like

FAMILY: Family = mixture_like(
    "Mixtral",
    "mixtral",
    "Mixtral",
    ExpertFacts("mlp.gate", "mlp.experts"),
    {"window": "self_attn.config.sliding_window"},
)
