# SPDX-License-Identifier: Apache-2.0
"""Thresholds of token pruning are learned softly, then weights get used to dropping tokens."""

from gossamer.training.token_pruning.cost import TokenCost, measure_tokens
from gossamer.training.token_pruning.objective import kept_fractions, token_penalty
from gossamer.training.token_pruning.stages import StageResult, TokenPlan, train_token_pruning
from gossamer.training.token_pruning.start import set_thresholds

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
