# SPDX-License-Identifier: Apache-2.0
"""Channels that BatchNorm can switch off: its |gamma| says what they are worth.

A channel that is cut loses the row of the layer before and its gamma and beta; it then gives
exactly 0, in training and after, whatever the running statistics are.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.errors import TargetError
from gossamer.pruning.schedules.layers import SparseLayer


@dataclass(frozen=True, eq=False)
class Channels:
    """The output channels of one layer and the BatchNorm behind it."""

    layer: SparseLayer
    norm_name: str
    norm: _BatchNorm

    @property
    def gamma(self) -> nn.Parameter:
        """Scale of each channel."""
        return self.norm.weight

    def row_mask(self, kept: torch.Tensor) -> torch.Tensor:
        """Bool [R, K] of the layer: whole rows."""
        return kept[:, None].expand_as(self.layer.mask).contiguous()

    def silence(self, kept: torch.Tensor) -> None:
        """Zero gamma and beta of the channels that are cut, now and in every later gradient."""
        for parameter in (self.norm.weight, self.norm.bias):
            parameter.data.masked_fill_(~kept, 0.0)
            # With zero slots and zero gradient every optimizer leaves them at 0.
            parameter.register_hook(partial(_within, kept))  # type: ignore[no-untyped-call]


def find_channels(model: nn.Module, layers: list[SparseLayer]) -> list[Channels]:
    """Each BatchNorm with the layer registered right before it, both of the same width."""
    by_name = {layer.name: layer for layer in layers}
    found, before = [], None
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.affine:
            if before is not None and before.mask.shape[0] == module.num_features:
                found.append(Channels(before, name, module))
            before = None
        elif isinstance(module, nn.Linear | nn.Conv2d):
            before = by_name.get(name)
    if not found:
        raise TargetError(
            "early_bird with form 'channels' looks at the gammas of BatchNorm, but no target layer"
            " is followed by one of its width. Use form 'weights'."
        )
    return found


def _within(kept: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return torch.where(kept, gradient, 0.0)
