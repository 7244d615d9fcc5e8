# SPDX-License-Identifier: Apache-2.0
"""Gemma, the first one: the layers of Llama with norms around 1, GELU and scaled embeddings."""

from dataclasses import replace

from gossamer.nn.families.llama import llama_like

FAMILY = replace(
    llama_like(
        "Gemma",
        "gemma",
        "Gemma",
        decoder={
            "norm": "rms + 1",
            "embedding_scale": "model.embed_tokens.embed_scale",
            "requires": (("config.use_bidirectional_attention", False),),
        },
    ),
    growth="weights of its norms are distances from 1, which growth does not know",
)
