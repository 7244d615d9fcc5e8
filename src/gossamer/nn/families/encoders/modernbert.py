# SPDX-License-Identifier: Apache-2.0
"""ModernBERT: turned queries and keys, gates, and layers that see near tokens only."""

from gossamer.nn.families.encoders.bert import ENCODER_HEADS
from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    GrowthFacts,
    transformers_chain,
    transformers_path,
)

FAMILY = Family(
    name="ModernBERT",
    block=BlockParts(
        block=transformers_path("modernbert", "ModernBertEncoderLayer"),
        projections=("attn.Wqkv",),
        output="attn.Wo",
        attention="attn",
        head_dim="attn.head_dim",
        segments=3,
        expansions=("mlp.Wi",),
        expansion_segments=2,
        down="mlp.Wo",
        activation="mlp.act",
        norms=("attn_norm", "mlp_norm"),
        norm_first=True,
        whole="gate and up of its feed-forward part are one layer, whose rows belong in pairs",
    ),
    encoder=EncoderFacts(
        layers="layers", is_model=True, rotary="rotary_emb", window="attn.sliding_window"
    ),
    # A classifier takes the first token outside of its modules, which every stage would do.
    chains={
        "ModernBertForMaskedLM": transformers_chain(
            "model", "layers", "embeddings", "final_norm", "head decoder"
        )
    },
    classes=ClassNames("modernbert", "ModernBert", ENCODER_HEADS, activation="hidden_activation"),
    growth=GrowthFacts(
        width=("hidden_size",),
        heads="num_attention_heads",
        ffn="intermediate_size",
        layers="num_hidden_layers",
        vocabulary="vocab_size",
        per_layer=("layer_types",),
        roles={
            "tok_embeddings": "table",
            "embeddings.norm": "norm",
            "final_norm": "norm",
            "head.dense": "inner",
            "head.norm": "last norm",
            "decoder": "head",
            "classifier": "classifier",
        },
    ),
)
