# SPDX-License-Identifier: Apache-2.0
"""The ordinary linear layer of several experts, and the one with a mask.

Legend: S tokens sorted by expert, E experts, O outputs and K inputs of one expert, R = E O rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gossamer.errors import InputError, PatternError
from gossamer.nn.layers.masked import MaskedWeight
from gossamer.ops.experts import grouped_linear
from gossamer.patterns import Pattern

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class ExpertSizes:
    """What a linear layer of experts is besides its weight."""

    num_experts: int
    in_features: int

    @classmethod
    def of(cls, layer: Any) -> "ExpertSizes":
        """Those of a layer of experts in any form."""
        return cls(int(layer.num_experts), int(layer.in_features))


def check_tiles(pattern: Pattern, rows: int, num_experts: int, where: str) -> None:
    """Raise if tiles of the pattern would lie across two experts."""
    # Patterns of others need not say.
    height = getattr(pattern, "block_rows", getattr(pattern, "tile", (1, 1))[0])
    if num_experts > 1 and rows % height:
        raise PatternError(
            f"{where}: pattern {pattern} has tiles of {height} rows, and an expert has {rows}: a"
            f" tile would belong to two experts. Use a pattern whose tiles divide {rows}."
        )


class GroupedLinear(nn.Module):
    """A linear layer for each of several experts; initialised as so many nn.Linear.

    Args:
        num_experts: E.
        in_features: K.
        out_features: O, of one expert.
        bias: whether every expert adds one.
        device: of the Parameters.
        dtype: of the Parameters.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        num_experts: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_experts < 1:
            raise InputError(f"GroupedLinear: num_experts must be at least 1, got {num_experts}.")
        self.num_experts, self.in_features = num_experts, in_features
        self.out_features = out_features
        rows = num_experts * out_features
        self.weight = nn.Parameter(torch.empty(rows, in_features, device=device, dtype=dtype))
        empty = torch.empty(rows if bias else 0, device=device, dtype=dtype)
        self.register_parameter("bias", nn.Parameter(empty) if bias else None)
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x_SK: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The tokens [S, K] of all experts, `counts[e]` of each, behind one another: [S, O]."""
        return grouped_linear(x_SK, self.weight, self.bias, counts)

    def extra_repr(self) -> str:
        """Sizes, as nn.Linear prints its own."""
        return (
            f"num_experts={self.num_experts}, in_features={self.in_features},"
            f" out_features={self.out_features}, bias={self.bias is not None}"
        )


class MaskedExperts(MaskedWeight, GroupedLinear):
    """`GroupedLinear` with a mask over the rows of all experts; they may keep unequal numbers."""

    kind = "experts"

    @classmethod
    def from_dense(cls, layer: nn.Module, mask: torch.Tensor, pattern: Pattern) -> "Self":
        """Mask a layer: its Parameters and hooks are taken over, pruned entries become 0."""
        sizes: Any = layer
        check_tiles(pattern, sizes.out_features, sizes.num_experts, f"{cls.__name__}.from_dense")
        return super().from_dense(layer, mask, pattern)

    def forward(self, x_SK: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """The product with `W * mask` of every token's expert."""
        return grouped_linear(x_SK, self.masked_weight(), self.bias, counts)

    def to_dense(self) -> GroupedLinear:
        """An ordinary, independent GroupedLinear with exact zeros."""
        return self._copied_to(
            GroupedLinear,
            num_experts=self.num_experts,
            in_features=self.in_features,
            out_features=self.out_features,
        )
