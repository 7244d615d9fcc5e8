# SPDX-License-Identifier: Apache-2.0
"""Thresholds of token pruning are learned softly, then weights get used to dropping tokens.

`train_token_pruning` carries out a `TokenPlan`; `set_thresholds` gives it a start, `measure_tokens`
says how many tokens are left and what that saves.
"""

from gossamer.training.token_pruning.measuring import TokenCost, measure_tokens, set_thresholds
from gossamer.training.token_pruning.stages import (
    TokenPlan,
    TokenStageResult,
    kept_fractions,
    token_penalty,
    train_token_pruning,
)

__all__ = [
    "TokenCost",
    "TokenPlan",
    "TokenStageResult",
    "kept_fractions",
    "measure_tokens",
    "set_thresholds",
    "token_penalty",
    "train_token_pruning",
]
