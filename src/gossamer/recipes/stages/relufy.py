# SPDX-License-Identifier: Apache-2.0
"""What a `relufy` stage says: activations of feed-forward blocks become ReLU."""

from typing import Literal

from gossamer.recipes.base import BelowOne, Found, Raw, StageSettings


class Relufy(StageSettings):
    """The activation of feed-forward blocks becomes ReLU; a `recover` stage should follow."""

    zeros: BelowOne | None = None
    """Fraction of zeros a shift is chosen for, on the data; null: no shift."""
    form: Literal["shift", "threshold"] = "shift"
    """relu(x - b), or x itself where it is above b: for models that were trained with ReLU."""
    norms: bool = False
    """A ReLU behind the norms of every block, too, so that projections read zeros."""

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """A threshold has to be chosen for something."""
        if raw.get("form") == "threshold" and raw.get("zeros") is None:
            yield "form", "a threshold is chosen for a fraction of zeros: set zeros: 0.9."
