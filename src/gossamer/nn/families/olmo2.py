# SPDX-License-Identifier: Apache-2.0
"""OLMo 2: the layers of Llama, with norms behind every part, and of all queries and all keys."""

from dataclasses import replace

from gossamer.nn.families.family import GgufNames
from gossamer.nn.families.llama import GGUF_HEAD_NORMS, LLAMA_HEAD_NORMS, llama_like

_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
FAMILY = replace(
    llama_like(
        "OLMo 2",
        "olmo2",
        "Olmo2",
        block={"norms": _NORMS, "whole": "one norm looks at the queries of all heads"},
        decoder={"norms_in": (), "norms_out": _NORMS, "head_norms": LLAMA_HEAD_NORMS},
        growth={
            "norms_out": _NORMS,
            "inside": {"self_attn.q_norm": "query norm", "self_attn.k_norm": "key norm"},
        },
    ),
    gguf=GgufNames(
        "olmo2",
        "Olmo2ForCausalLM",
        norms=("post_attention_norm", "post_ffw_norm"),
        more=GGUF_HEAD_NORMS,
    ),
)
