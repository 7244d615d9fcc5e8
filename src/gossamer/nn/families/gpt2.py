# SPDX-License-Identifier: Apache-2.0
"""GPT-2. Its weights are stored transposed, in transformers' Conv1D."""

from gossamer.nn.families.family import (
    GGUF_FUSED,
    BlockParts,
    ClassNames,
    DecoderFacts,
    Family,
    GgufNames,
    GrowthFacts,
    transformers_chain,
    transformers_path,
)

_PARTS = ("h", "wte wpe drop", "ln_f")
_CHAIN = transformers_chain("transformer", *_PARTS, "lm_head")
_BLOCK = BlockParts(
    block=transformers_path("gpt2", "GPT2Block"),
    projections=("attn.c_attn",),
    output="attn.c_proj",
    attention="attn",
    head_dim="attn.head_dim",
    head_counts=("attn.num_heads",),
    head_widths=("attn.split_size",),
    segments=3,
    expansions=("mlp.c_fc",),
    down="mlp.c_proj",
    activation="mlp.act",
    norms=("ln_1", "ln_2"),
    norm_first=True,
)

FAMILY = Family(
    name="GPT-2",
    block=_BLOCK,
    decoder=DecoderFacts(
        "GPT2LMHeadModel",
        _CHAIN,
        _BLOCK,
        scale="attn.scaling",
        norm="layer",
        positions="transformer.wpe",
        requires=(("config.add_cross_attention", False),),
    ),
    chains={
        "GPT2Model": transformers_chain("", *_PARTS, ""),
        "GPT2LMHeadModel": _CHAIN,
    },
    classes=ClassNames(
        "gpt2",
        "GPT2",
        ("Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification"),
        activation="activation_function",
    ),
    gguf=GgufNames(
        "gpt2",
        "GPT2LMHeadModel",
        linears=GGUF_FUSED,
        front=("token_embd", "position_embd", "drop"),
        renamed={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
            "eps": "layer_norm_epsilon",
        },
        fixed={"activation_function": "gelu_new"},
    ),
    growth=GrowthFacts(
        width=("n_embd",),
        heads="n_head",
        ffn="n_inner",
        layers="n_layer",
        vocabulary="vocab_size",
        by_number=("scale_attn_by_inverse_layer_idx",),
        roles={
            "wte": "table",
            "wpe": "embedding",
            "ln_f": "last norm",
            "lm_head": "head",
            "score": "classifier",
            "classifier": "classifier",
        },
    ),
)
