# SPDX-License-Identifier: Apache-2.0
"""What a `structured` stage says: whole heads and filters are taken out."""

from typing import ClassVar, Literal

from pydantic import Field

from gossamer.recipes.base import Share, StageSettings


class Structured(StageSettings):
    """Whole heads and filters, found by Fisher scores, then taken out: a smaller dense model."""

    changes_shapes: ClassVar = True
    fractions: ClassVar = {"budget": "(0, 1]"}

    budget: Share
    """Fraction of `cost` that may be left."""
    cost: Literal["macs", "parameters", "latency"] = "macs"
    """What the budget counts; latency is measured here."""
    fisher: Literal["batch", "sample"] = "batch"
    """Gradients squared per batch, or per sample."""
    rearrange: bool = True
    """Swap units by the block-diagonal Fisher matrix."""
    tune: bool = True
    """Scale kept units to reconstruct the dense outputs."""
    refit: bool = True
    """Then refit output weights by least squares."""
    multiple: int = Field(default=1, ge=1, le=4096)
    """Kept filters are a multiple of it."""
    min_units: int = Field(default=1, ge=0, le=65536)
    """Heads or filters a layer keeps at least."""
    rounds: int = Field(default=1, ge=1, le=32)
    """Geometric steps to the budget, gradients anew in each."""
    hold_out: float = Field(default=0.25, ge=0.0, le=0.5)
    """Part of the batches whose loss decides whether a stage is kept; 0: all are."""
