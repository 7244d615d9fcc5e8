# SPDX-License-Identifier: Apache-2.0
"""What a `relufy` stage says: activations of feed-forward blocks become ReLU."""

from gossamer.recipes.base import BelowOne, StageSettings


class Relufy(StageSettings):
    """The activation of feed-forward blocks becomes ReLU; a `recover` stage should follow."""

    zeros: BelowOne | None = None
    """Fraction of zeros a shift is chosen for, on the data; null: no shift."""
