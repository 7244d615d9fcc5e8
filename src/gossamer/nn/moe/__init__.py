# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: models that use a part of themselves for each token.

`ExpertFFN` is the feed-forward part of several experts, `adopt_experts` makes layers of those of
transformers, whose Parameters are `stored_experts`. The linear layers in them are the kind
"experts" of the table of layer kinds.
"""

from gossamer.nn.moe.adopted import RoutedExperts, adopt_experts, stored_experts
from gossamer.nn.moe.feed_forward import ExpertFFN

__all__ = ["ExpertFFN", "RoutedExperts", "adopt_experts", "stored_experts"]
