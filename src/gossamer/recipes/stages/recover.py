# SPDX-License-Identifier: Apache-2.0
"""What a `recover` stage says, as data; see `schema.py`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gossamer.recipes.stages.shared_fields import Rules
from gossamer.recipes.stages.train import CheckpointSettings

TERMS: Final = ("logits", "embeddings", "similarity", "hidden")


class Recover(BaseModel):
    """Short training with the dense model as teacher; masks are held."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    steps: int = Field(
        default=1000, ge=1, le=100_000_000, description="Steps of the optimizer, at most."
    )
    minutes: float | None = Field(
        default=None,
        gt=0.0,
        le=1e6,
        description="Minutes, at most; null: only the steps count, and the result is reproducible.",
    )
    batch: int = Field(
        default=32, ge=1, le=1_000_000, description="Samples (pairs, texts, windows) of a step."
    )
    rate: float = Field(default=5e-4, gt=0.0, le=1.0, description="Highest learning rate.")
    warmup: float = Field(
        default=0.05, ge=0.0, lt=1.0, description="Part of the run in which the rate rises."
    )
    decay: Literal["linear", "cosine", "constant"] = Field(
        default="linear", description="How the rate then falls to zero; constant: it does not."
    )
    logits: float = Field(
        default=0.0, ge=0.0, le=1e6, description="Weight of matching the teacher's distribution."
    )
    temperature: float = Field(
        default=2.0, gt=0.0, le=1e3, description="Softens both distributions."
    )
    embeddings: float = Field(
        default=0.0, ge=0.0, le=1e6, description="Weight of matching the vectors of samples."
    )
    distance: Literal["cosine", "squares"] = Field(
        default="cosine", description="How vectors are compared."
    )
    similarity: float = Field(
        default=0.0,
        ge=0.0,
        le=1e6,
        description="Weight of matching the cosines of all pairs in a batch.",
    )
    hidden: float = Field(
        default=0.0, ge=0.0, le=1e6, description="Weight of matching every block's hidden states."
    )
    hardness: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Part of the task's own loss, on labels; 0 looks at the teacher only.",
    )
    freeze: Rules | None = Field(
        default=None,
        description="Classes, globs or re:... whose parameters are not trained.",
    )
    quantise: Literal["int8"] | None = Field(
        default=None, description="Train as the int8 kernels will compute; null: in fp32."
    )
    scales: Literal["token", "calibrated", "learned"] = Field(
        default="token",
        description="Of int8 activations: measured per token, or one per layer.",
    )
    holdout: float = Field(
        default=0.1, gt=0.0, le=0.5, description="Part of the data that chooses the best state."
    )
    checks: int = Field(default=8, ge=1, le=10_000, description="How often that is looked at.")
    checkpoint: CheckpointSettings = Field(
        default=CheckpointSettings(every=100), description="When the run is saved."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of holdout and order.")

    @model_validator(mode="after")
    def _check(self) -> "Recover":
        raw = {name: getattr(self, name) for name in self.model_fields_set}
        found = [f"{field}: {message}" for field, message in recover_faults(raw)]
        if found:
            raise ValueError(" ".join(found))
        return self


def recover_faults(recover: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, message) of settings that do not go together, on the raw mapping of a file."""
    weights = [recover.get(name, 0) for name in TERMS]
    if recover.get("hardness", 0) != 1 and all(weight == 0 for weight in weights):
        yield (
            "embeddings",
            "every term is 0, so there is nothing to learn: give one of"
            f" {', '.join(TERMS)} a weight, or set hardness: 1.",
        )
    if recover.get("quantise") is None and recover.get("scales", "token") != "token":
        yield "scales", "belongs to quantise: int8. Set that, or leave scales out."
