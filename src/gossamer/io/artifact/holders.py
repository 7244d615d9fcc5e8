# SPDX-License-Identifier: Apache-2.0
"""Which layer holds a sparse weight in the place of which ordinary layer."""

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gossamer.nn import (
    CompactWeight,
    Conv2d,
    Linear,
    MaskedConv2d,
    MaskedLinear,
    MaskedOutProj,
    MaskedWeight,
    Mode,
    inherit_hooks,
)
from gossamer.nn.carried import carried, hand_over
from gossamer.nn.fastpath import READ_BY_ATTENTION
from gossamer.ops.conv.settings import ConvSettings
from gossamer.patterns import Pattern


def can_mask(layer: nn.Module) -> bool:
    """Whether `mask_layer` takes it: an ordinary or sparse Linear or Conv2d."""
    return isinstance(layer, MaskedWeight | CompactWeight) or type(layer) in (
        nn.Linear,
        NonDynamicallyQuantizableLinear,
        nn.Conv2d,
    )


def why_not_compact(layer: nn.Module) -> str | None:
    """Why `compact_layer` does not take it; None for an ordinary, masked or compact layer."""
    if not isinstance(layer, nn.Linear | nn.Conv2d | CompactWeight):
        return "it is neither Linear nor Conv2d"
    if isinstance(layer, MaskedOutProj):
        return READ_BY_ATTENTION
    return carried(layer, inherits_hooks=True)


def ordinary_layer(layer: MaskedWeight | CompactWeight) -> nn.Module:
    """An ordinary layer with the weights, zeros included, the bias and the hooks of `layer`."""
    dense: nn.Module = layer.to_dense()  # type: ignore[operator]
    inherit_hooks(dense, layer)
    hand_over(dense, layer)
    dense._parameters["bias"] = layer._parameters["bias"]
    return dense


def mask_layer(layer: nn.Module, mask: torch.Tensor, pattern: Pattern) -> MaskedWeight:
    """A masked layer in the place of `layer`, with its Parameters and hooks."""
    if isinstance(layer, CompactWeight):
        layer = ordinary_layer(layer)
    if isinstance(layer, nn.Conv2d):
        return MaskedConv2d.from_dense(layer, mask, pattern)
    if isinstance(layer, MaskedOutProj | NonDynamicallyQuantizableLinear):
        return MaskedOutProj.from_dense(layer, mask, pattern)
    if isinstance(layer, nn.Linear):
        return MaskedLinear.from_dense(layer, mask, pattern)
    raise TypeError(f"cannot mask a {type(layer).__name__}")


def compact_layer(
    layer: nn.Module,
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    num_columns: int,
    pattern: Pattern,
    mode: Mode,
) -> CompactWeight:
    """A compact layer in the place of `layer`, with its bias and hooks."""
    bias = layer._parameters["bias"]
    compact: CompactWeight
    if isinstance(layer, nn.Conv2d | Conv2d):
        settings = ConvSettings.of(layer)
        compact = Conv2d(values, mask_bits, settings, bias, pattern=pattern, mode=mode)
    else:
        compact = Linear(values, mask_bits, num_columns, bias, pattern=pattern, mode=mode)
    inherit_hooks(compact, layer)
    hand_over(compact, layer)
    return compact
