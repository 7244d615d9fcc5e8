# SPDX-License-Identifier: Apache-2.0
"""DeBERTa-v2 and -v3: queries and keys are also multiplied with vectors of distances."""

from gossamer.nn.families.encoders.bert import ENCODER_HEADS
from gossamer.nn.families.family import BlockParts, ClassNames, Family, transformers_path

FAMILY = Family(
    name="DeBERTa-v2",
    block=BlockParts(
        block=transformers_path("deberta_v2", "DebertaV2Layer"),
        projections=(
            "attention.self.query_proj",
            "attention.self.key_proj",
            "attention.self.value_proj",
        ),
        output="attention.output.dense",
        attention="attention.self",
        head_dim="attention.self.attention_head_size",
        head_counts=("attention.self.num_attention_heads",),
        head_widths=("attention.self.all_head_size",),
        expansions=("intermediate.dense",),
        down="output.dense",
        activation="intermediate.intermediate_act_fn",
        norms=("attention.output.LayerNorm", "output.LayerNorm"),
        norm_first=False,
        whole="its matrices of queries and keys also project the vectors of distances",
    ),
    encoder=(
        "its scores add products of every query and every key with vectors of distances, and the"
        " native encoder adds only numbers that no token changes"
    ),
    tokens="where tokens are dropped, distances between those that stay are others",
    chains="its encoder computes distances and their vectors once for all layers",
    classes=ClassNames("deberta-v2", "DebertaV2", ENCODER_HEADS, activation="hidden_act"),
    growth="its encoder norms vectors of distances that every layer projects, beside the stream",
)
