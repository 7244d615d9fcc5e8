# SPDX-License-Identifier: Apache-2.0
"""What a `relufy` stage says: activations of feed-forward blocks become ReLU."""

from pydantic import Field

from gossamer.recipes.base import StageSettings


class Relufy(StageSettings):
    """The activation of feed-forward blocks becomes ReLU; a `recover` stage should follow."""

    zeros: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Fraction of zeros a shift is chosen for, on the data; null: no shift."""
