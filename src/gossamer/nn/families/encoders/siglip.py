# SPDX-License-Identifier: Apache-2.0
"""SigLIP: the two towers of CLIP; both attend to all tokens."""

from dataclasses import replace

from gossamer.nn.families.encoders.clip import TOWER_PATCHES, two_towers
from gossamer.nn.families.encoders.vit import NO_WORDS, TOWER_GROWTH
from gossamer.nn.families.family import ClassNames, EncoderFacts, Family

FAMILY = Family(
    name="SigLIP",
    block=two_towers("siglip", "Siglip"),
    encoder=EncoderFacts(layers="layers"),
    tokens=NO_WORDS,
    positions=NO_WORDS,
    classes=ClassNames("siglip_vision_model", "SiglipVision", ("Model",), activation="hidden_act"),
    growth=replace(
        TOWER_GROWTH,
        roles={
            **TOWER_PATCHES,
            "post_layernorm": "norm",
            # Its pooler attends with one learned query.
            "head": "embedding",
            "head.attention": "joint",
            "head.attention.out_proj": "output",
            "head.layernorm": "norm",
            "head.mlp.fc1": "expansion",
            "head.mlp.fc2": "down",
        },
    ),
)
