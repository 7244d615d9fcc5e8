# SPDX-License-Identifier: Apache-2.0
"""A feed-forward layer that is a mixture of experts, and what it says about its routing.

Legend: T tokens, D width, E experts.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gossamer.nn.moe.feed_forward import ExpertFFN
from gossamer.nn.moe.router import Balance, Choice, Router, Routing


class RoutingNotes:
    """What the last forward of a layer in training left to be read; copies of it are empty."""

    last: Routing | None = None

    def __deepcopy__(self, memo: Any) -> "RoutingNotes":
        return RoutingNotes()


class MoE(nn.Module):
    """Router and experts in the place of a feed-forward layer.

    In training it notes its routing; `take_routing` reads the notes of a model and gives the loss
    that keeps experts in balance, to be added to the loss of the task.

    Args:
        width: D.
        ffn_width: inner width of one expert.
        num_experts: E.
        top_k: experts of a token.
        choice: who chooses, see `Router`.
        activation: see `ExpertFFN`.
        bias: of the experts' layers.
        capacity_factor: see `Router`; None drops no token.
        jitter: see `Router`.
        balance: "loss" adds `balance_weight` times E sum f P, "bias" moves the router's bias,
            "none" does neither: for fine-tuning.
        balance_weight: the loss at perfect balance.
        z_weight: of the loss that keeps logits small.
    """

    def __init__(  # noqa: PLR0913  (one argument per setting of a mixture)
        self,
        width: int,
        ffn_width: int,
        num_experts: int,
        *,
        top_k: int = 1,
        choice: Choice = "tokens",
        activation: str = "gelu",
        bias: bool = True,
        capacity_factor: float | None = None,
        jitter: float = 0.0,
        balance: Balance = "loss",
        balance_weight: float = 1e-2,
        z_weight: float = 1e-3,
    ) -> None:
        super().__init__()
        self.router = Router(
            width,
            num_experts,
            top_k=top_k,
            choice=choice,
            capacity_factor=capacity_factor,
            jitter=jitter,
            balance=balance,
        )
        self.experts = ExpertFFN(num_experts, width, ffn_width, activation=activation, bias=bias)
        self.balance_weight, self.z_weight = balance_weight, z_weight
        self.notes = RoutingNotes()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the experts of every token of x [..., D] make of it; 0 where none has a place."""
        x_TD = x.reshape(-1, x.shape[-1])
        routing: Routing = self.router(x_TD)
        if self.training:
            self.notes.last = routing
        y_TD: torch.Tensor = self.experts(x_TD, routing.routes, routing.weights)
        return y_TD.view(x.shape)

    def loss(self, routing: Routing) -> torch.Tensor:
        """What the layer adds to the loss of the task."""
        total = self.z_weight * routing.z_loss()
        if self.router.balance == "loss" and self.router.choice == "tokens":
            total = total + self.balance_weight * routing.balance_loss()
        return total


def moe_layers(model: nn.Module) -> Iterator[tuple[str, MoE]]:
    """(name, layer) of the mixtures of a model."""
    for name, module in model.named_modules():
        if isinstance(module, MoE):
            yield name, module


def take_routing(model: nn.Module) -> tuple[torch.Tensor | None, dict[str, float]]:
    """The losses of routing of the last forward in training, and numbers for its record.

    They are forgotten with that. Numbers: `moe_loss`; `moe_dropped`, the part of pairs of token and
    expert that found no place; `moe_load`, the load of the fullest expert over the mean, of the
    worst layer, and `moe_load <layer>` of each; `moe_entropy`, of the loads, 1 for perfect balance.
    """
    losses: list[torch.Tensor] = []
    numbers: dict[str, float] = {}
    dropped = pairs = 0
    entropies: list[float] = []
    for name, layer in moe_layers(model):
        routing, layer.notes.last = layer.notes.last, None
        if routing is None:
            continue
        losses.append(layer.loss(routing))
        wanted, own = routing.wanted.double(), routing.dropped
        parts = wanted / wanted.sum().clamp(min=1)
        numbers[f"moe_load {name}"] = float(parts.max()) * len(parts)
        entropy = float(torch.special.entr(parts).sum())
        entropies.append(entropy / math.log(len(parts)) if len(parts) > 1 else 1.0)
        if own > int(wanted.sum()) / 2:
            warnings.warn(
                f"{name or 'MoE'}: {own} of {int(wanted.sum())} pairs of token and expert found no"
                " place: more than half. Raise the capacity factor, or balance the experts.",
                stacklevel=2,
            )
        dropped, pairs = dropped + own, pairs + int(wanted.sum())
    if not losses:
        return None, {}
    total = torch.stack(losses).sum()
    numbers["moe_loss"] = float(total.detach())
    numbers["moe_dropped"] = dropped / max(pairs, 1)
    numbers["moe_load"] = max(v for k, v in numbers.items() if k.startswith("moe_load "))
    numbers["moe_entropy"] = min(entropies)
    return total, numbers
