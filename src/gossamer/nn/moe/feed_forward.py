# SPDX-License-Identifier: Apache-2.0
"""The feed-forward part of experts: what a router's choice is carried out by.

Legend: T tokens, k experts of each, S pairs of both sorted by expert, D width, F inner width.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, relu, silu

from gossamer.errors import InputError
from gossamer.nn.layers.experts import GroupedLinear
from gossamer.ops.experts import Routes

Activation = Callable[[torch.Tensor], torch.Tensor]
# Computes tokens that are sorted by expert; how many each has.
Compute = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
# Has them computed where their experts are: tokens, how many each expert has, and how.
Exchange = Callable[[torch.Tensor, Sequence[int], Compute], torch.Tensor]
_PLAIN: dict[str, Activation] = {"relu": relu, "gelu": gelu, "silu": silu}
_GATED: dict[str, Activation] = {"swiglu": silu, "geglu": gelu, "reglu": relu}
ACTIVATIONS = (*_PLAIN, *_GATED)


class ExpertFFN(nn.Module):
    """Up, activation and down of several experts: `down_e(act(up_e(x)))` for every token's experts.

    Args:
        num_experts: E.
        width: D.
        ffn_width: F of one expert.
        activation: "relu", "gelu", "silu"; gated, with twice as many rows in `up`, "swiglu",
            "geglu", "reglu".
        bias: of both layers.

    Attributes:
        exchange: carries tokens to the process that has their expert; None: all of them are here.
    """

    exchange: Exchange | None = None

    def __init__(
        self,
        num_experts: int,
        width: int,
        ffn_width: int,
        *,
        activation: str = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise InputError(
                f"ExpertFFN: activation must be one of {', '.join(ACTIVATIONS)}; got"
                f" {activation!r}."
            )
        self.num_experts, self.width, self.ffn_width = num_experts, width, ffn_width
        self.activation = activation
        rows = ffn_width * (2 if activation in _GATED else 1)
        self.up = GroupedLinear(num_experts, width, rows, bias)
        self.down = GroupedLinear(num_experts, ffn_width, width, bias)

    def act(self, h_SF: torch.Tensor) -> torch.Tensor:
        """The activation behind `up`."""
        if self.activation in _PLAIN:
            return _PLAIN[self.activation](h_SF)
        gate, up = h_SF.chunk(2, dim=-1)
        return _GATED[self.activation](gate) * up

    def forward(self, x_TD: torch.Tensor, routes: Routes, weights_S: torch.Tensor) -> torch.Tensor:
        """The weighted sum of what its experts make of every token, [T, D]."""
        return run_experts(
            self.up, self.act, self.down, x_TD, routes, weights_S, exchange=self.exchange
        )


def run_experts(
    up: Any,
    act: Activation,
    down: Any,
    x_TD: torch.Tensor,
    routes: Routes,
    weights_S: torch.Tensor,
    exchange: Exchange | None = None,
) -> torch.Tensor:
    """The weighted sum of `down(act(up(x)))` over the experts of every token."""

    def compute(rows_SD: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        result: torch.Tensor = down(act(up(rows_SD, counts)), counts)
        return result

    x_SD = routes.gather(x_TD)
    if exchange is None:
        y_SD = compute(x_SD, routes.counts)
    else:
        y_SD = exchange(x_SD, routes.counts, compute)
    return routes.combine(y_SD, weights_S)
