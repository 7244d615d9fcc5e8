# SPDX-License-Identifier: Apache-2.0
"""Structured post-training pruning: whole heads and filters go, the model gets smaller for good.

Start with `prune_structured`. It takes gradients of mask variables, searches for the
best units within a budget (`search`), cuts the others out (`units`) and fits
what is left to the dense model (`tune`, with `replay`).
"""

from gossamer.pruning.structured.pipeline import StructuredResult, prune_structured
from gossamer.pruning.structured.units import find_units, slim

__all__ = ["StructuredResult", "find_units", "prune_structured", "slim"]
