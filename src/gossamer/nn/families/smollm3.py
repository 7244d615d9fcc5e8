# SPDX-License-Identifier: Apache-2.0
"""SmolLM3: the layers of Llama, of which some do not rotate."""

from dataclasses import replace

from gossamer.nn.families.family import GgufNames
from gossamer.nn.families.llama import LLAMA_WINDOW, llama_like

FAMILY = replace(
    llama_like(
        "SmolLM3",
        "smollm3",
        "SmolLM3",
        decoder={"rotates": "self_attn.use_rope", "window": LLAMA_WINDOW},
        growth={"per_layer": ("layer_types", "no_rope_layers")},
    ),
    gguf=GgufNames("smollm3", "SmolLM3ForCausalLM", rows="pairs"),
)
