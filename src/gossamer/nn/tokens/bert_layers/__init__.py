# SPDX-License-Identifier: Apache-2.0
"""What dropping tokens takes from the layers of BERT: their attention, and where they are."""

from gossamer.nn.tokens.bert_layers.attention import (
    attend,
    first_tokens,
    fixed_divisor,
    heads_of,
    live_tokens,
)
from gossamer.nn.tokens.bert_layers.stacks import check_uncalled, find_encoder, find_stacks

__all__ = [
    "attend",
    "check_uncalled",
    "find_encoder",
    "find_stacks",
    "first_tokens",
    "fixed_divisor",
    "heads_of",
    "live_tokens",
]
