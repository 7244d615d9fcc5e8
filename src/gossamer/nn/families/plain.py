# SPDX-License-Identifier: Apache-2.0
"""Models without transformer blocks: torch's Sequential and the MLP of gossamer's zoo."""

from gossamer.nn.families.family import Chain, Family
from gossamer.nn.families.reasons import NO_GGUF, NOT_TRANSFORMERS

_NO_BLOCK = "it has no transformer blocks"
_NO_TOKENS = "it reads features, not tokens"


def _plain(name: str, chains: dict[str, Chain] | str) -> Family:
    return Family(
        name=name,
        block=_NO_BLOCK,
        encoder=_NO_BLOCK,
        decoder=_NO_BLOCK,
        tokens=_NO_TOKENS,
        positions=_NO_TOKENS,
        chains=chains,
        classes=NOT_TRANSFORMERS,
        gguf=NO_GGUF,
    )


SEQUENTIAL = _plain("Sequential", {"Sequential": Chain()})
MLP = _plain(
    "zoo.MLP",
    "its activation also runs between the layers of other stages; write it as an nn.Sequential",
)
