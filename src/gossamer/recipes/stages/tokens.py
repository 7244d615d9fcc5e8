# SPDX-License-Identifier: Apache-2.0
"""What a `tokens` stage says: an encoder learns which tokens it can leave out."""

from typing import ClassVar, Literal

from gossamer.recipes.base import (
    Found,
    Fraction,
    Frozen,
    Positive,
    Raw,
    Samples,
    Seed,
    Share,
    StageSettings,
    Steps,
    Weight,
)

_TERMS = ("logits", "embeddings")


class Tokens(StageSettings):
    """Learned token pruning of an encoder, with the model as it was as teacher."""

    needs_teacher: ClassVar = True

    keep: Share = 0.75
    """Share of its tokens a layer keeps at the start."""
    penalty: Weight = 0.003
    """Price of all tokens of a layer, in the loss."""
    soft_steps: Steps = 150
    """Steps in which thresholds learn, too."""
    hard_steps: Steps = 150
    """Then steps with tokens really dropped."""
    batch: Samples = 32
    """Samples of a step."""
    rate: Fraction = 1e-4
    """Learning rate of weights."""
    threshold_rate: Fraction = 1e-4
    """Learning rate of thresholds."""
    temperature: Positive = 2e-3
    """Width of soft thresholds; falls to a fifth."""
    normalise: Literal["live", "padded", "received"] = "live"
    """What the attention a token receives is divided by."""
    dropped: Literal["zero", "last"] = "zero"
    """What the output holds for a dropped token."""
    logits: Weight = 0.0
    """Weight of matching the teacher's distribution."""
    embeddings: Weight = 0.0
    """Weight of matching the vectors of samples."""
    freeze: Frozen = None
    seed: Seed = 0
    """Of the batches and their order."""

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """Training needs a term to learn from."""
        steps = [raw.get(name, 1) for name in ("soft_steps", "hard_steps")]
        if any(step != 0 for step in steps) and all(raw.get(name, 0) == 0 for name in _TERMS):
            yield (
                "embeddings",
                "every term is 0, so there is nothing to learn from: give logits or embeddings a"
                " weight, or set soft_steps and hard_steps to 0.",
            )
