# SPDX-License-Identifier: Apache-2.0
"""Starcoder2: the attention of Llama, with LayerNorm and a feed-forward part without a gate."""

from dataclasses import replace

from gossamer.nn.families.llama import llama_like

FAMILY = replace(
    llama_like(
        "Starcoder2",
        "starcoder2",
        "Starcoder2",
        block={"expansions": ("mlp.c_fc",), "down": "mlp.c_proj", "activation": "mlp.act"},
        decoder={"norm": "layer", "window": "self_attn.config.sliding_window"},
    ),
    chains="it drops embeddings outside of its modules, which every stage of a pipeline would do",
    growth="growing was never tried on layers of Llama with biases and without gates",
)
