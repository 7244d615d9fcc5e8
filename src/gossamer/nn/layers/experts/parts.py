# SPDX-License-Identifier: Apache-2.0
"""Some of the experts of a layer, as a layer of their own with Parameters of their own."""

from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.experts.compact import Experts
from gossamer.nn.layers.experts.grouped import ExpertSizes, GroupedLinear

# A Parameter of the part -> the whole one, and its entries there, flat.
Origins = dict[nn.Parameter, tuple[nn.Parameter, slice]]


def some_experts(layer: Any, first: int, count: int) -> tuple[nn.Module, Origins]:
    """A copy of experts `first` to `first + count` of a dense or compact layer."""
    origins: Origins = {}

    def cut(name: str, start: int, stop: int, width: int) -> nn.Parameter:
        whole: nn.Parameter = layer._parameters[name]
        own = nn.Parameter(whole.detach()[start:stop].clone(), requires_grad=whole.requires_grad)
        origins[own] = whole, slice(start * width, stop * width)
        return own

    rows = slice(first * layer.out_features, (first + count) * layer.out_features)
    bias = None if layer.bias is None else cut("bias", rows.start, rows.stop, 1)
    if type(layer) is GroupedLinear:
        part = GroupedLinear(
            count, layer.in_features, layer.out_features, bias is not None, device="meta"
        )
        part.weight = cut("weight", rows.start, rows.stop, layer.in_features)
        part.bias = bias
        return part.train(layer.training), origins
    if not isinstance(layer, Experts):
        raise InputError(
            f"experts: a {type(layer).__name__} has no part of its own; dense and compact layers"
            " have. Set compaction to auto, so that masked layers become compact."
        )
    kept = layer.kept_of_experts()
    start = sum(kept[:first])
    values = cut("values", start, start + sum(kept[first : first + count]), 1)
    sizes, mask_bits = ExpertSizes(count, layer.in_features), layer.mask_bits[rows]
    compact = Experts(values, mask_bits, sizes, bias, pattern=layer.pattern, mode=layer.mode)
    return compact.train(layer.training), origins
