# SPDX-License-Identifier: Apache-2.0
"""What a `relufy` stage says, as data; see `schema.py`."""

from pydantic import BaseModel, ConfigDict, Field


class Relufy(BaseModel):
    """The activation of feed-forward blocks becomes ReLU; a `recover` stage should follow."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    zeros: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="Fraction of zeros a shift is chosen for, on the data; null: no shift.",
    )
