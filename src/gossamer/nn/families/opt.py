# SPDX-License-Identifier: Apache-2.0
"""OPT."""

from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    DecoderFacts,
    Family,
    GrowthFacts,
    transformers_chain,
    transformers_path,
)
from gossamer.nn.families.llama import LLAMA_HEADS

_BLOCK = BlockParts(
    block=transformers_path("opt", "OPTDecoderLayer"),
    projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    attention="self_attn",
    head_dim="self_attn.head_dim",
    head_counts=("self_attn.num_heads",),
    expansions=("fc1",),
    down="fc2",
    activation="activation_fn",
    norms=("self_attn_layer_norm", "final_layer_norm"),
    norm_first="do_layer_norm_before",
)
FAMILY = Family(
    name="OPT",
    block=_BLOCK,
    decoder=DecoderFacts(
        "OPTForCausalLM",
        transformers_chain(
            "model.decoder", "layers", "embed_tokens", "final_layer_norm", "lm_head"
        ),
        _BLOCK,
        norm="layer",
        positions="model.decoder.embed_positions",
        requires=(
            ("config.do_layer_norm_before", True),
            ("model.decoder.final_layer_norm", True),
            ("model.decoder.project_in", False),
        ),
    ),
    encoder="its layers hide later tokens; the native encoder attends to all of them",
    classes=ClassNames("opt", "OPT", LLAMA_HEADS, activation="activation_function"),
    gguf="llama.cpp has no OPT, so there are no files of it",
    growth=GrowthFacts(
        width=("hidden_size", "word_embed_proj_dim"),
        heads="num_attention_heads",
        ffn="ffn_dim",
        layers="num_hidden_layers",
        vocabulary="vocab_size",
        roles={
            "embed_tokens": "table",
            "embed_positions": "embedding",
            "project_in": "inner",
            "project_out": "inner",
            "final_layer_norm": "last norm",
            "lm_head": "head",
            "score": "classifier",
        },
    ),
)
