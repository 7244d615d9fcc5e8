# SPDX-License-Identifier: Apache-2.0
"""The feed-forward parts of a dense model whose family has a class with experts.

Legend: D width, F inner features, R rows in front of the activation: F, or gate and up, 2 F.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.families import answers, block_of, family_of, why_not
from gossamer.nn.layer_kinds import sparse_layers


@dataclass(frozen=True)
class FeedForwardPart:
    """The feed-forward part of one block.

    Attributes:
        block: dotted name of the block.
        ups: layers in front of the activation: up, or gate and up.
        down: the layer behind it.
    """

    block: str
    ups: tuple[nn.Linear, ...]
    down: nn.Linear

    @property
    def width(self) -> int:
        """F."""
        return self.down.in_features


def feed_forwards(model: nn.Module) -> list[FeedForwardPart]:
    """Those of all blocks, in the order of the model.

    Raises:
        TargetError: the family has no class with experts, layers are pruned, or a part is no
            ordinary Linear.
    """
    if family_of(model, "mixtures") is None:
        raise TargetError(
            f"{type(model).__name__}: cannot get experts.{why_not(model, 'mixtures')} Families that"
            f" can: {', '.join(answers('mixtures'))}."
        )
    pruned = next((name for name, _ in sparse_layers(model)), None)
    if pruned is not None:
        raise TargetError(
            f"{pruned}: is pruned; experts are made of dense layers. Make the mixture first, then"
            " prune it, or call to_dense() on its layers."
        )
    found = []
    for name, module in model.named_modules():
        parts = block_of(module, "mixtures")
        if parts is not None:
            prefix = f"{name}." if name else ""
            ups: Any = [_linear(model, prefix + path) for path in parts.expansions]
            found.append(FeedForwardPart(name, tuple(ups), _linear(model, prefix + parts.down)))
    widths = sorted({part.width for part in found})
    if len(widths) > 1:
        raise TargetError(
            f"feed-forward parts have {widths[0]} to {widths[-1]} inner features; the experts of a"
            " model are all of one size. Make the mixture before filters are cut out."
        )
    return found


def _linear(model: nn.Module, path: str) -> nn.Linear:
    layer = model.get_submodule(path)
    if type(layer) is not nn.Linear:
        raise TargetError(f"{path}: is a {type(layer).__name__}, expected a torch.nn.Linear.")
    return layer


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Gate rows, then up rows."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
