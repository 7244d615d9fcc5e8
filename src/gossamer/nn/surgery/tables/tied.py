# SPDX-License-Identifier: Apache-2.0
"""An output layer that multiplies with a table: one copy, rounded as lookups round it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.nn.layers.tables import TableLayer


class _AsLookedUp(torch.autograd.Function):
    """Forward gives the rounded table, backward passes the gradient straight through."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class TiedLinear(nn.Module):
    """y = x W^T + b, where W is a table with a float32 shadow, seen as its lookups see it.

    The product needs all rows at once: they are rounded in every call, into a temporary matrix. Its
    gradient is dense, so an optimizer of the dense part moves this table.

    Args:
        table: trained, with a shadow.
        bias: or None.
    """

    def __init__(self, table: TableLayer, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = table.get_parameter("weight")
        self.register_parameter("bias", bias)
        self.in_features, self.out_features = table.embedding_dim, table.num_embeddings
        # Not a child: its tensors have names already.
        self.__dict__["_table"] = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X [..., in] to [..., out]."""
        rounded = self.__dict__["_table"].rows().floats()
        weight = _AsLookedUp.apply(self.weight, rounded)  # type: ignore[no-untyped-call]
        return F.linear(x, weight, self._parameters["bias"])
