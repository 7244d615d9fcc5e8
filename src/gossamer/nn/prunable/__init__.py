# SPDX-License-Identifier: Apache-2.0
"""Which layers can have a mask, and where the weights are that pruning leaves dense."""

from gossamer.nn.prunable.layers import EMBEDDINGS, PRUNABLE, is_head, why_not_prunable
from gossamer.nn.prunable.left_dense import LeftDense, left_dense, left_lines

__all__ = [
    "EMBEDDINGS",
    "PRUNABLE",
    "LeftDense",
    "is_head",
    "left_dense",
    "left_lines",
    "why_not_prunable",
]
