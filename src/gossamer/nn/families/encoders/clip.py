# SPDX-License-Identifier: Apache-2.0
"""CLIP: two towers; that over images attends to all patches, that over texts hides later tokens."""

from dataclasses import replace

from gossamer.nn.families.encoders.vit import NO_WORDS, TOWER_GROWTH, tower_parts
from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    Role,
)

TOWER_PATCHES: dict[str, Role] = {
    "patch_embedding": "patches",
    "position_embedding": "embedding",
}


def two_towers(model_type: str, prefix: str) -> BlockParts:
    """The blocks of CLIP, whose two towers have the same."""
    return replace(
        tower_parts(model_type, f"{prefix}EncoderLayer", ("layer_norm1", "layer_norm2")),
        projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output="self_attn.out_proj",
        attention="self_attn",
        head_dim="self_attn.head_dim",
        head_counts=("self_attn.num_heads",),
    )


FAMILY = Family(
    name="CLIP",
    block=two_towers("clip", "CLIP"),
    encoder=EncoderFacts(layers="layers", config="CLIPVisionConfig"),
    tokens=NO_WORDS,
    positions=NO_WORDS,
    classes=ClassNames("clip_vision_model", "CLIPVision", ("Model",), activation="hidden_act"),
    growth=replace(
        TOWER_GROWTH,
        roles={
            **TOWER_PATCHES,
            "embeddings": "embedding",
            "pre_layrnorm": "norm",
            "post_layernorm": "norm",
        },
    ),
)
