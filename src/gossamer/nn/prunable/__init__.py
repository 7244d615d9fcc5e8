# SPDX-License-Identifier: Apache-2.0
"""Which layers can have a mask, where the weights are that pruning leaves dense, what works."""

from gossamer.nn.prunable.left_dense import (
    EMBEDDINGS,
    PRUNABLE,
    LeftDense,
    active_parameters,
    is_head,
    left_dense,
    left_lines,
    why_not_prunable,
)

__all__ = [
    "EMBEDDINGS",
    "PRUNABLE",
    "LeftDense",
    "active_parameters",
    "is_head",
    "left_dense",
    "left_lines",
    "why_not_prunable",
]
