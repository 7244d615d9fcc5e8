# SPDX-License-Identifier: Apache-2.0
"""Families of encoders: of texts as BERT reads them, and of images. `ENCODERS` has their rows."""

from typing import Final

from gossamer.nn.families.encoders import (
    albert,
    bert,
    camembert,
    clip,
    dinov2,
    distilbert,
    electra,
    modernbert,
    mpnet,
    nomic_bert,
    roberta,
    siglip,
    vit,
    xlm_roberta,
)
from gossamer.nn.families.family import Family

__all__ = ["ENCODERS"]

ENCODERS: Final[tuple[Family, ...]] = (
    bert.FAMILY,
    roberta.FAMILY,
    xlm_roberta.FAMILY,
    camembert.FAMILY,
    distilbert.FAMILY,
    electra.FAMILY,
    albert.FAMILY,
    mpnet.FAMILY,
    modernbert.FAMILY,
    nomic_bert.FAMILY,
    vit.FAMILY,
    dinov2.FAMILY,
    clip.FAMILY,
    siglip.FAMILY,
)
