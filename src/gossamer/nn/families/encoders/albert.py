# SPDX-License-Identifier: Apache-2.0
"""ALBERT: a few layers of BERT that run many times, behind narrow embeddings."""

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
    name="ALBERT",
    block=BlockParts(
        block=transformers_path("albert", "AlbertLayer"),
        projections=("attention.query", "attention.key", "attention.value"),
        output="attention.dense",
        head_dim="attention.attention_head_size",
        head_counts=("attention.num_attention_heads",),
        head_widths=("attention.all_head_size",),
        expansions=("ffn",),
        down="ffn_output",
        activation="activation",
        norms=("attention.LayerNorm", "full_layer_layer_norm"),
        norm_first=False,
        whole="its layers are shared, so a head would be cut out of all of them at once",
    ),
    encoder=EncoderFacts(
        layers="albert_layer_groups",
        groups="albert_layers",
        front="embedding_hidden_mapping_in",
    ),
    tokens="its layers are shared, and tokens are dropped by one threshold per layer",
    chains="its layers are shared, and a pipeline gives each stage layers of its own",
    classes=ClassNames("albert", "Albert", ENCODER_HEADS, activation="hidden_act"),
    growth=GrowthFacts(
        width=("hidden_size", "embedding_size"),
        heads="num_attention_heads",
        ffn="intermediate_size",
        layers="",
        vocabulary="vocab_size",
        roles={
            **EMBEDDINGS,
            "embedding_hidden_mapping_in": "inner",
            "pooler": "inner",
            "predictions.dense": "inner",
            "predictions.LayerNorm": "last norm",
            "predictions.decoder": "head",
            "predictions": "logits",
            "classifier": "classifier",
            "qa_outputs": "classifier",
        },
    ),
)
