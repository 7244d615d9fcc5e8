# SPDX-License-Identifier: Apache-2.0
"""A plain multi-layer perceptron: the smallest model worth pruning."""

from collections.abc import Sequence

import torch
from torch import nn

from gossamer.zoo.arguments import MAX_LAYERS, ZooArgs, check_choice, check_size

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class MLP(nn.Module):
    """Linear layers of the given sizes with an activation between them.

    `MLP((64, 256, 256, 8))` maps float [..., 64] to logits [..., 8]. The last layer is called
    `head`, which pruning leaves alone by default.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "relu") -> None:
        super().__init__()
        check_size("MLP: len(sizes)", len(sizes), low=2, high=MAX_LAYERS)
        self.sizes = tuple(check_size("MLP: sizes", size) for size in sizes)
        self.activation = check_choice("MLP: activation", activation, _ACTIVATIONS)
        hidden = zip(self.sizes[:-2], self.sizes[1:-1], strict=True)
        self.layers = nn.ModuleList(nn.Linear(inner, outer) for inner, outer in hidden)
        self.head = nn.Linear(self.sizes[-2], self.sizes[-1])
        self.act = _ACTIVATIONS[activation]()

    def zoo_args(self) -> ZooArgs:
        """The arguments that build this model again."""
        return {"sizes": self.sizes, "activation": self.activation}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [..., sizes[-1]] of x [..., sizes[0]]."""
        for layer in self.layers:
            x = self.act(layer(x))
        logits: torch.Tensor = self.head(x)
        return logits
