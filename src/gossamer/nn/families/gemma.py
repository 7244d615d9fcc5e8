# SPDX-License-Identifier: Apache-2.0
"""Gemma, the first one: the layers of Llama with norms around 1, GELU and scaled embeddings."""

from gossamer.nn.families.llama import llama_like

# Norms are around 1, and embeddings are multiplied by the root of the width.
GEMMA_GROWTH = {"around_one": True, "embedding_scale": "embed_scale"}

FAMILY = llama_like(
    "Gemma",
    "gemma",
    "Gemma",
    decoder={
        "norm": "rms + 1",
        "embedding_scale": "model.embed_tokens.embed_scale",
        "requires": (("config.use_bidirectional_attention", False),),
    },
    growth=GEMMA_GROWTH,
)
