# SPDX-License-Identifier: Apache-2.0
"""The TinyEncoder of gossamer's zoo."""

from gossamer.nn.families.family import BlockParts, Chain, Family, PositionFacts
from gossamer.nn.families.reasons import NO_GGUF, NORM_FIRST, NOT_CAUSAL, NOT_TRANSFORMERS

FAMILY = Family(
    name="zoo.TinyEncoder",
    block=BlockParts(
        block="gossamer.zoo.encoder.EncoderLayer",
        projections=("query", "key", "value"),
        output="output",
        attention="",
        head_dim="head_dim",
        head_counts=("num_heads",),
        expansions=("up",),
        down="down",
        activation="activation",
        norms=("attention_norm", "ffn_norm"),
        norm_first=True,
    ),
    encoder=NORM_FIRST,
    decoder=NOT_CAUSAL,
    tokens="its block computes attention itself, so nothing says how much a token is looked at",
    positions=PositionFacts(),
    chains={"TinyEncoder": Chain("layers", ("tokens", "positions"), ("norm", "pool", "head"))},
    classes=NOT_TRANSFORMERS,
    gguf=NO_GGUF,
)
