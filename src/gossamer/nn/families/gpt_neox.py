# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX and Pythia: parallel parts, LayerNorm, heads that rotate in some columns."""

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

_CHAIN = transformers_chain("gpt_neox", "layers", "embed_in", "final_layer_norm", "lm_head")
_BLOCK = BlockParts(
    block=transformers_path("gpt_neox", "GPTNeoXLayer"),
    projections=("attention.query_key_value",),
    output="attention.dense",
    attention="attention",
    head_dim="attention.head_size",
    expansions=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    activation="mlp.act",
    norms=("input_layernorm", "post_attention_layernorm"),
    norm_first=True,
    segments=3,
    whole="rows of its projection are query, key and value of each head in turn",
)
FAMILY = Family(
    name="GPT-NeoX",
    block=_BLOCK,
    decoder=DecoderFacts(
        "GPTNeoXForCausalLM",
        _CHAIN,
        _BLOCK,
        scale="attention.scaling",
        norm="layer",
        rotary="gpt_neox.rotary_emb",
        parallel="use_parallel_residual",
        interleaved=True,
    ),
    classes=ClassNames(
        "gpt_neox",
        "GPTNeoX",
        ("Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification"),
        activation="hidden_act",
    ),
    gguf=GgufNames(
        "gptneox",
        "GPTNeoXForCausalLM",
        linears=GGUF_FUSED,
        rows="stacked",
        settings={"use_parallel_residual": "use_parallel_residual"},
        renamed={"eps": "layer_norm_eps"},
        fixed={"hidden_act": "gelu"},
        partial=True,
    ),
    growth=GrowthFacts(
        width=("hidden_size",),
        heads="num_attention_heads",
        ffn="intermediate_size",
        layers="num_hidden_layers",
        vocabulary="vocab_size",
        rows="in turn",
        roles={
            "embed_in": "table",
            "final_layer_norm": "last norm",
            "lm_head": "head",
            "score": "classifier",
            "classifier": "classifier",
        },
    ),
)
