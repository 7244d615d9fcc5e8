# SPDX-License-Identifier: Apache-2.0
"""The layers of a module of experts, in whatever form it has them."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from gossamer.nn.moe.adopted import RoutedExperts, stored_layers, stored_projections

__all__ = ["ExpertProjections", "projections_of"]


@dataclass(frozen=True)
class ExpertProjections:
    """What the experts of transformers are made of.

    Attributes:
        num_experts: E.
        up: the layer of experts that reads the tokens; rows of gate and up, if there is a gate.
        down: the layer behind it.
        has_gate: whether there is a gate.
        activation: module of the activation.
        own_gate: the family computes gate and up otherwise than activation(gate) * up.
    """

    num_experts: int
    up: nn.Module
    down: nn.Module
    has_gate: bool
    activation: nn.Module
    own_gate: bool


def projections_of(module: nn.Module) -> ExpertProjections | None:
    """The layers of a module of experts; views of its Parameters where it has no layers.

    None for every other module.
    """
    if isinstance(module, RoutedExperts):
        up, down = module.layers
        rules: Any = module.rules
    else:
        stored = stored_projections(module)
        if not stored:
            return None
        up, down = stored_layers(module, stored)
        rules = module
    return ExpertProjections(
        num_experts=int(rules.num_experts),
        up=up,
        down=down,
        has_gate=bool(rules.has_gate),
        activation=rules.act_fn,
        # The one that transformers gives to classes without one of their own.
        own_gate=type(rules)._apply_gate.__module__ != "transformers.integrations.moe",
    )
