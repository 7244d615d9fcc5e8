# SPDX-License-Identifier: Apache-2.0
"""What a `round` stage says: weights are rounded to few bits."""

from typing import Literal

from gossamer.recipes.base import Found, Ignored, Raw, StageSettings

_Rounding = Literal["int8", "int4", "int4_offset", "bf16"]


class Round(StageSettings):
    """Weights on the integer grids of kernels and files, or in bf16."""

    layers: _Rounding | None = "int8"
    """Of Linear and Conv2d, pruned or not; null: left alone."""
    embeddings: _Rounding | None = None
    """Of Embedding; null: left alone."""
    ignore: Ignored = None

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """There must be something to round."""
        if raw.get("layers", "int8") is None and raw.get("embeddings") is None:
            yield "layers", "neither layers nor embeddings are given, so there is nothing to round."

    @property
    def needs_data(self) -> bool:
        """It looks at weights only."""
        return False
