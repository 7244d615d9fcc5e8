# SPDX-License-Identifier: Apache-2.0
"""DINOv2: the blocks of ViT; what each part gives is multiplied by a learned scale."""

from dataclasses import replace

from gossamer.nn.families.encoders.vit import NO_WORDS, TOWER_GROWTH, tower_parts
from gossamer.nn.families.family import ClassNames, EncoderFacts, Family

FAMILY = Family(
    name="DINOv2",
    block=tower_parts("dinov2", "Dinov2Layer", ("norm1", "norm2")),
    encoder=EncoderFacts(scales=("layer_scale1.lambda1", "layer_scale2.lambda1")),
    tokens=NO_WORDS,
    positions=NO_WORDS,
    classes=ClassNames(
        "dinov2", "Dinov2", ("Model", "ForImageClassification"), activation="hidden_act"
    ),
    growth=replace(
        TOWER_GROWTH,
        ffn="",  # a multiple of the width
        inside={"layer_scale1": "norm", "layer_scale2": "norm"},
        roles={**TOWER_GROWTH.roles, "classifier": "pair classifier"},
    ),
)
