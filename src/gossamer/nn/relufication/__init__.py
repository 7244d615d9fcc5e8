# SPDX-License-Identifier: Apache-2.0
"""The activation of feed-forward blocks becomes ReLU, so that it gives real zeros.

`find_feed_forward` finds the blocks, `choose_shifts` reads shifts off data, `relufy` replaces the
activations and `restore_activations` puts them back.
"""

from gossamer.nn.relufication.activations import (
    FeedForward,
    ShiftedReLU,
    choose_shifts,
    find_feed_forward,
    fold_shifts,
    relufy,
    restore_activations,
)

__all__ = [
    "FeedForward",
    "ShiftedReLU",
    "choose_shifts",
    "find_feed_forward",
    "fold_shifts",
    "relufy",
    "restore_activations",
]
