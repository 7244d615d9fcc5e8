# SPDX-License-Identifier: Apache-2.0
"""MPNet: scores know how far apart two tokens are, by a table that all layers share."""

from gossamer.nn.families.encoders.bert import EMBEDDINGS, ENCODER_HEADS
from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    GrowthFacts,
    PositionFacts,
    transformers_path,
)

_SHARED = "all layers share the table of distances, which has a column for every head"

FAMILY = Family(
    name="MPNet",
    block=BlockParts(
        block=transformers_path("mpnet", "MPNetLayer"),
        projections=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        output="attention.attn.o",
        attention="attention.attn",
        head_dim="attention.attn.attention_head_size",
        head_counts=("attention.attn.num_attention_heads",),
        head_widths=("attention.attn.all_head_size",),
        expansions=("intermediate.dense",),
        down="output.dense",
        activation="intermediate.intermediate_act_fn",
        norms=("attention.LayerNorm", "output.LayerNorm"),
        norm_first=False,
        whole=_SHARED,
    ),
    encoder=EncoderFacts(bias="compute_position_bias", bias_table="relative_attention_bias"),
    tokens="its attention computes the output projection, too, which token pruning calls apart",
    positions=PositionFacts(after_padding=True),
    chains="its encoder computes what all layers add to their scores, which no stage would do",
    classes=ClassNames("mpnet", "MPNet", ENCODER_HEADS, activation="hidden_act"),
    growth=GrowthFacts(
        width=("hidden_size",),
        heads="num_attention_heads",
        ffn="intermediate_size",
        layers="num_hidden_layers",
        vocabulary="vocab_size",
        roles={
            **EMBEDDINGS,
            "relative_attention_bias": "distances",
            "pooler.dense": "inner",
            "lm_head.dense": "inner",
            "lm_head.layer_norm": "last norm",
            "lm_head.decoder": "head",
            "lm_head": "logits",
            "classifier.dense": "inner",
            "classifier.out_proj": "classifier",
            "classifier": "classifier",
            "qa_outputs": "classifier",
        },
    ),
)
