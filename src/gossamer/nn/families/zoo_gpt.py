# SPDX-License-Identifier: Apache-2.0
"""The GPT of gossamer's zoo."""

from gossamer.nn.families.family import BlockParts, Chain, Family, GrowthFacts, MixtureFacts

FAMILY = Family(
    name="zoo.GPT",
    block=BlockParts(
        block="gossamer.zoo.gpt.GPTBlock",
        projections=("qkv",),
        output="output",
        head_dim="head_dim",
        segments=3,
        expansions=("up",),
        down="down",
        activation="act",
        norms=("attention_norm", "ffn_norm"),
        norm_first=True,
    ),
    chains={"GPT": Chain("blocks", ("tokens", "positions"), ("norm", "head"))},
    growth=GrowthFacts(
        width=("width",),
        heads="num_heads",
        ffn="ffn_width",
        layers="num_layers",
        vocabulary="vocab_size",
        roles={"tokens": "table", "positions": "embedding", "norm": "last norm", "head": "head"},
    ),
    mixtures=(
        MixtureFacts(
            "gossamer.zoo.switch",
            "SwitchGPT",
            "num_experts",
            "ffn_width",
            up="moe.experts.up",
            down="moe.experts.down",
            router="moe.router",
            top_k="top_k",
            fixed={"every": 1},
        ),
    ),
)
