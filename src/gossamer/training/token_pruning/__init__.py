# SPDX-License-Identifier: Apache-2.0
"""Thresholds of token pruning are learned softly, then weights get used to dropping tokens."""

from gossamer.training.token_pruning.measuring import TokenCost, measure_tokens, set_thresholds
from gossamer.training.token_pruning.stages import (
    StageResult,
    TokenPlan,
    kept_fractions,
    token_penalty,
    train_token_pruning,
)

__all__ = [
    "StageResult",
    "TokenCost",
    "TokenPlan",
    "kept_fractions",
    "measure_tokens",
    "set_thresholds",
    "token_penalty",
    "train_token_pruning",
]
