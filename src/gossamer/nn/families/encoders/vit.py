# SPDX-License-Identifier: Apache-2.0
"""ViT, and what other families take from it: a tower of blocks over the patches of an image."""

from dataclasses import replace

from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    GrowthFacts,
    transformers_path,
)

NO_WORDS = "it reads patches of images, which are no tokens of a text"
TOWER_GROWTH = GrowthFacts(
    width=("hidden_size",),
    heads="num_attention_heads",
    ffn="intermediate_size",
    layers="num_hidden_layers",
    vocabulary="",
    roles={
        "embeddings": "embedding",
        "patch_embeddings.projection": "patches",
        "layernorm": "norm",
        "pooler.dense": "inner",
        "classifier": "classifier",
    },
)


def tower_parts(model_type: str, block: str, norms: tuple[str, str]) -> BlockParts:
    """A block with norms first and projections that are named `q_proj` and so on."""
    return BlockParts(
        block=transformers_path(model_type, block),
        projections=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        output="attention.o_proj",
        attention="attention",
        head_dim="attention.head_dim",
        head_counts=("attention.num_attention_heads",),
        expansions=("mlp.fc1",),
        down="mlp.fc2",
        activation="mlp.activation_fn",
        norms=norms,
        norm_first=True,
    )


FAMILY = Family(
    name="ViT",
    block=tower_parts("vit", "ViTLayer", ("layernorm_before", "layernorm_after")),
    encoder=EncoderFacts(layers="layers", is_model=True),
    tokens=NO_WORDS,
    positions=NO_WORDS,
    classes=ClassNames("vit", "ViT", ("Model", "ForImageClassification"), activation="hidden_act"),
    growth=replace(TOWER_GROWTH, width=("hidden_size", "pooler_output_size")),
)
