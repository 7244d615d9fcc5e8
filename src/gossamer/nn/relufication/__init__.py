# SPDX-License-Identifier: Apache-2.0
"""The activation of feed-forward blocks becomes ReLU, so that it gives real zeros.

`find_feed_forward` finds the blocks, `choose_shifts` reads shifts off data, `relufy` replaces the
activations (and, for its second stage, puts ReLUs behind norms), and `restore_activations` puts all
back. `states` is what files keep of it.

A shifted ReLU, relu(x - b), gives more of them: b is read off the distribution of what reaches the
activation. The model changes; short training wins back what that costs. In gated blocks the
activation of the gate is replaced, and a zero gate makes a zero product.
"""

from gossamer.nn.relufication.activations import RectifiedNorm, ShiftedReLU
from gossamer.nn.relufication.blocks import FeedForward, find_feed_forward
from gossamer.nn.relufication.replacing import relufy, restore_activations
from gossamer.nn.relufication.shifts import choose_shifts, fold_shifts

__all__ = [
    "FeedForward",
    "RectifiedNorm",
    "ShiftedReLU",
    "choose_shifts",
    "find_feed_forward",
    "fold_shifts",
    "relufy",
    "restore_activations",
]
