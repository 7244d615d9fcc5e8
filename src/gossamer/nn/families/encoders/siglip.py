# SPDX-License-Identifier: Apache-2.0
"""SigLIP: the two towers of CLIP; both attend to all tokens."""

from gossamer.nn.families.encoders.clip import two_towers
from gossamer.nn.families.encoders.vit import NO_GROWTH, NO_WORDS
from gossamer.nn.families.family import ClassNames, EncoderFacts, Family

FAMILY = Family(
    name="SigLIP",
    block=two_towers("siglip", "Siglip"),
    encoder=EncoderFacts(layers="layers"),
    tokens=NO_WORDS,
    positions=NO_WORDS,
    classes=ClassNames("siglip_vision_model", "SiglipVision", ("Model",), activation="hidden_act"),
    growth=NO_GROWTH,
)
