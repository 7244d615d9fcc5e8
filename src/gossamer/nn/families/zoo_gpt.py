# SPDX-License-Identifier: Apache-2.0
"""The GPT of gossamer's zoo."""

from gossamer.nn.families.family import BlockParts, Chain, Family, PositionFacts
from gossamer.nn.families.reasons import (
    NO_GGUF,
    NORM_FIRST,
    NOT_GATED,
    NOT_TRANSFORMERS,
    WRITES_TOKENS,
)

FAMILY = Family(
    name="zoo.GPT",
    block=BlockParts(
        block="gossamer.zoo.gpt.GPTBlock",
        projections=("qkv",),
        output="output",
        attention="",
        head_dim="head_dim",
        segments=3,
        expansions=("up",),
        down="down",
        activation="act",
        norms=("attention_norm", "ffn_norm"),
        norm_first=True,
    ),
    encoder=NORM_FIRST,
    decoder=NOT_GATED,
    tokens=WRITES_TOKENS,
    positions=PositionFacts(),
    chains={"GPT": Chain("blocks", ("tokens", "positions"), ("norm", "head"))},
    classes=NOT_TRANSFORMERS,
    gguf=NO_GGUF,
)
