# SPDX-License-Identifier: Apache-2.0
"""Models without transformer blocks: torch's Sequential and the MLP of gossamer's zoo."""

from gossamer.nn.families.family import Chain, Family

_NO_TOKENS = "it reads features, not tokens"

SEQUENTIAL = Family(
    name="Sequential",
    tokens=_NO_TOKENS,
    positions=_NO_TOKENS,
    chains={"Sequential": Chain()},
)
MLP = Family(
    name="zoo.MLP",
    tokens=_NO_TOKENS,
    positions=_NO_TOKENS,
    chains="its activation also runs between the layers of other stages; use an nn.Sequential",
)
