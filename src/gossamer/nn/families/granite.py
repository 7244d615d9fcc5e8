# SPDX-License-Identifier: Apache-2.0
"""Granite: the layers of Llama, with factors of embeddings, scores, sums and logits."""

from dataclasses import replace

from gossamer.nn.families.family import ClassNames, GgufNames
from gossamer.nn.families.llama import llama_like

FAMILY = replace(
    llama_like(
        "Granite",
        "granite",
        "Granite",
        block={"whole": "what a part gives is scaled before it is added"},
        decoder={
            "residual_scale": "residual_multiplier",
            "embedding_scale": "model.embedding_multiplier",
            "logits_divisor": "config.logits_scaling",
        },
    ),
    classes=ClassNames("granite", "Granite", ("Model", "ForCausalLM"), activation="hidden_act"),
    gguf=GgufNames(
        "granite",
        "GraniteForCausalLM",
        rows="pairs",
        settings={
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
    ),
    chains="the input of every stage of a pipeline would be scaled like embeddings",
)
