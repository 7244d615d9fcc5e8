# SPDX-License-Identifier: Apache-2.0
"""What a `recover` stage says: short training with the dense model as teacher."""

from typing import ClassVar, Literal

from pydantic import Field

from gossamer.recipes.base import (
    BelowOne,
    Count,
    Found,
    Fraction,
    Frozen,
    Positive,
    Raw,
    Samples,
    Seed,
    Share,
    StageSettings,
    Weight,
)
from gossamer.recipes.stages.train import CheckpointSettings

_TERMS = ("logits", "embeddings", "similarity", "hidden")


class Recover(StageSettings):
    """Short training with the dense model as teacher; masks are held."""

    needs_teacher: ClassVar = True

    steps: int = Field(default=1000, ge=1, le=100_000_000)
    """Steps of the optimizer, at most."""
    minutes: float | None = Field(default=None, gt=0.0, le=1e6)
    """Minutes, at most; null: only the steps count, and the result is reproducible."""
    batch: Samples = 32
    """Samples (pairs, texts, windows) of a step."""
    rate: Share = 5e-4
    """Highest learning rate."""
    warmup: BelowOne = 0.05
    """Part of the run in which the rate rises."""
    decay: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate then falls to zero; constant: it does not."""
    logits: Weight = 0.0
    """Weight of matching the teacher's distribution."""
    temperature: Positive = 2.0
    """Softens both distributions."""
    embeddings: Weight = 0.0
    """Weight of matching the vectors of samples."""
    distance: Literal["cosine", "squares"] = "cosine"
    """How vectors are compared."""
    similarity: Weight = 0.0
    """Weight of matching the cosines of all pairs in a batch."""
    hidden: Weight = 0.0
    """Weight of matching every block's hidden states."""
    hardness: Fraction = 0.0
    """Part of the task's own loss, on labels; 0 looks at the teacher only."""
    freeze: Frozen = None
    quantise: Literal["int8"] | None = None
    """Train as the int8 kernels will compute; null: in fp32."""
    scales: Literal["token", "calibrated", "learned"] = "token"
    """Of int8 activations: measured per token, or one per layer."""
    holdout: float = Field(default=0.1, gt=0.0, le=0.5)
    """Part of the data that chooses the best state."""
    checks: Count = 8
    """How often that is looked at."""
    checkpoint: CheckpointSettings = CheckpointSettings(every=100)
    """When the run is saved."""
    seed: Seed = 0
    """Of holdout and order."""

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """Something must be learned, and scales belong to int8."""
        weights = [raw.get(name, 0) for name in _TERMS]
        if raw.get("hardness", 0) != 1 and all(weight == 0 for weight in weights):
            yield (
                "embeddings",
                "every term is 0, so there is nothing to learn: give one of"
                f" {', '.join(_TERMS)} a weight, or set hardness: 1.",
            )
        if raw.get("quantise") is None and raw.get("scales", "token") != "token":
            yield "scales", "belongs to quantise: int8. Set that, or leave scales out."
