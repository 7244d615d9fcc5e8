# SPDX-License-Identifier: Apache-2.0
"""What a `tokens` stage says, as data; see `schema.py`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gossamer.recipes.stages.shared_fields import Rules

_TERMS: Final = ("logits", "embeddings")


class Tokens(BaseModel):
    """Learned token pruning of an encoder, with the model as it was as teacher."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    keep: float = Field(
        default=0.75, gt=0.0, le=1.0, description="Share of its tokens a layer keeps at the start."
    )
    penalty: float = Field(
        default=0.003, ge=0.0, le=1e6, description="Price of all tokens of a layer, in the loss."
    )
    soft_steps: int = Field(
        default=150, ge=0, le=100_000_000, description="Steps in which thresholds learn, too."
    )
    hard_steps: int = Field(
        default=150, ge=0, le=100_000_000, description="Then steps with tokens really dropped."
    )
    batch: int = Field(default=32, ge=1, le=1_000_000, description="Samples of a step.")
    rate: float = Field(default=1e-4, ge=0.0, le=1.0, description="Learning rate of weights.")
    threshold_rate: float = Field(
        default=1e-4, ge=0.0, le=1.0, description="Learning rate of thresholds."
    )
    temperature: float = Field(
        default=2e-3, gt=0.0, le=1e3, description="Width of soft thresholds; falls to a fifth."
    )
    normalise: Literal["live", "padded", "received"] = Field(
        default="live", description="What the attention a token receives is divided by."
    )
    dropped: Literal["zero", "last"] = Field(
        default="zero", description="What the output holds for a dropped token."
    )
    logits: float = Field(
        default=0.0, ge=0.0, le=1e6, description="Weight of matching the teacher's distribution."
    )
    embeddings: float = Field(
        default=0.0, ge=0.0, le=1e6, description="Weight of matching the vectors of samples."
    )
    freeze: Rules | None = Field(
        default=None, description="Classes, globs or re:... whose parameters are not trained."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of the batches and their order.")

    @model_validator(mode="after")
    def _check(self) -> "Tokens":
        raw = {name: getattr(self, name) for name in self.model_fields_set}
        found = [f"{field}: {message}" for field, message in tokens_faults(raw)]
        if found:
            raise ValueError(" ".join(found))
        return self


def tokens_faults(tokens: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, message) of settings that do not go together, on the raw mapping of a file."""
    steps = [tokens.get(name, 1) for name in ("soft_steps", "hard_steps")]
    if any(step != 0 for step in steps) and all(tokens.get(name, 0) == 0 for name in _TERMS):
        yield (
            "embeddings",
            "every term is 0, so there is nothing to learn from: give logits or embeddings a"
            " weight, or set soft_steps and hard_steps to 0.",
        )
