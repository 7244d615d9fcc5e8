# SPDX-License-Identifier: Apache-2.0
"""The TinyEncoder of gossamer's zoo."""

from gossamer.nn.families.family import BlockParts, Chain, Family, GrowthFacts

FAMILY = Family(
    name="zoo.TinyEncoder",
    block=BlockParts(
        block="gossamer.zoo.encoder.EncoderLayer",
        projections=("query", "key", "value"),
        output="output",
        head_dim="head_dim",
        head_counts=("num_heads",),
        expansions=("up",),
        down="down",
        activation="activation",
        norms=("attention_norm", "ffn_norm"),
        norm_first=True,
    ),
    encoder="it is for tests and examples, which run layer by layer",
    tokens="its block computes attention itself, so nothing says how much a token is looked at",
    chains={"TinyEncoder": Chain("layers", ("tokens", "positions"), ("norm", "pool", "head"))},
    growth=GrowthFacts(
        width=("width",),
        heads="num_heads",
        ffn="ffn_width",
        layers="num_layers",
        vocabulary="vocab_size",
        roles={
            "tokens": "table",
            "positions": "embedding",
            "norm": "last norm",
            "head": "classifier",
        },
    ),
)
