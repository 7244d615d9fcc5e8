# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: models that use a part of themselves for each token.

`MoE` is a feed-forward layer to train: its router chooses, an `ExpertFFN` computes. `take_routing`
gives the loss that keeps experts in balance; `moe_layers` walks them. `idle_experts` saw no token
(`has_experts` tells whether there are any). `adopt_experts` makes layers
of the experts of transformers, whose Parameters are `stored_experts`. The linear layers in all of
them are the kind "experts" of the table of layer kinds.
"""

from gossamer.nn.moe.adopted import adopt_experts, stored_experts
from gossamer.nn.moe.feed_forward import ExpertFFN
from gossamer.nn.moe.idle import has_experts, idle_experts
from gossamer.nn.moe.layer import MoE, moe_layers, take_routing

__all__ = [
    "ExpertFFN",
    "MoE",
    "adopt_experts",
    "has_experts",
    "idle_experts",
    "moe_layers",
    "stored_experts",
    "take_routing",
]
