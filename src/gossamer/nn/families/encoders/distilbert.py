# SPDX-License-Identifier: Apache-2.0
"""DistilBERT."""

from gossamer.nn.families.encoders.bert import EMBEDDINGS, ENCODER_HEADS
from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    GrowthFacts,
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
    growth=GrowthFacts(
        width=("dim",),
        heads="n_heads",
        ffn="hidden_dim",
        layers="n_layers",
        vocabulary="vocab_size",
        roles={
            **EMBEDDINGS,
            "vocab_transform": "inner",
            "vocab_layer_norm": "last norm",
            "vocab_projector": "head",
            "pre_classifier": "inner",
            "classifier": "classifier",
            "qa_outputs": "classifier",
        },
    ),
)
