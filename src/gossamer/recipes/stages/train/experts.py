# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of the model that a `train` stage builds."""

from typing import Literal

from pydantic import Field

from gossamer.recipes.base import Settings


class ExpertSettings(Settings):
    """Mixtures of experts."""

    count: int = Field(default=8, ge=1, le=65536)
    """Experts of a mixture."""
    top_k: int = Field(default=1, ge=1, le=65536)
    """Experts of a token; 1 is Switch."""
    every: int = Field(default=2, ge=1, le=1024)
    """Mixtures stand in every so-many-th block."""
    capacity: float = Field(default=0.0, ge=0.0, lt=1e6)
    """Factor of an expert's places; tokens beyond pass it by. 0: no token is dropped."""
    jitter: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Noise of the router's inputs in training; 0.01 in Switch."""
    balance: Literal["loss", "bias", "none"] = "loss"
    """What keeps experts in balance; bias: no loss, the router's bias follows the load."""
    balance_weight: float = Field(default=0.01, ge=0.0, lt=1e6)
    """The balance loss at perfect balance."""
    z_weight: float = Field(default=0.001, ge=0.0, lt=1e6)
    """Of the loss that keeps the router's logits small."""
