# SPDX-License-Identifier: Apache-2.0
"""DistilBERT."""

from gossamer.nn.families.bert import ENCODER_HEADS
from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    transformers_path,
)

FAMILY = Family(
    name="DistilBERT",
    block=BlockParts(
        block=transformers_path("distilbert", "TransformerBlock"),
        projections=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        output="attention.out_lin",
        attention="attention",
        head_dim="attention.attention_head_size",
        head_counts=("attention.n_heads",),
        expansions=("ffn.lin1",),
        down="ffn.lin2",
        activation="ffn.activation",
        norms=("sa_layer_norm", "output_layer_norm"),
        norm_first=False,
    ),
    encoder=EncoderFacts(),
    tokens="its attention computes the output projection, too, which token pruning calls apart",
    classes=ClassNames("distilbert", "DistilBert", ENCODER_HEADS, activation="activation"),
)
