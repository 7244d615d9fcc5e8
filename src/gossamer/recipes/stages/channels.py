# SPDX-License-Identifier: Apache-2.0
"""What a `channels` stage says: whole channels of a convolutional network are cut out."""

from typing import ClassVar, Literal

from gossamer.recipes.base import Share, StageSettings

__all__ = ["Channels"]


class Channels(StageSettings):
    """Whole channels, cut on both sides: a smaller dense network; `recover` should follow."""

    changes_shapes: ClassVar = True
    fractions: ClassVar = {"keep": "(0, 1]"}

    keep: Share
    """Part of the channels that stays."""
    budget: Literal["uniform", "global"] = "uniform"
    """The same part of every layer, or one threshold for all."""
    scorer: Literal["gamma", "magnitude"] = "gamma"
    """Which stay: those of large BatchNorm gammas, or of large filters."""
