# SPDX-License-Identifier: Apache-2.0
"""Which experts of a model saw no token: those whose whole gradient is zero."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gossamer.nn.layer_kinds import form_of, kind_name


def _expert_layers(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if kind_name(module) == "experts" and form_of(module) != "packed":
            yield module


def has_experts(model: nn.Module) -> bool:
    """Whether there is a layer of experts that is trained."""
    return any(True for _ in _expert_layers(model))


def idle_experts(model: nn.Module) -> Iterator[tuple[nn.Parameter, list[slice]]]:
    """Parameters of layers of experts, with their parts that belong to experts without a token."""
    for layer in _expert_layers(model):
        rows = [layer.out_features] * layer.num_experts
        weight: nn.Parameter
        if form_of(layer) == "compact":
            weight, kept = layer.values, layer.kept_of_experts()
        else:
            weight, kept = layer._parameters["weight"], rows
        for parameter, sizes in ((weight, kept), (layer.bias, rows)):
            gradient = None if parameter is None else parameter.grad
            if gradient is None:
                continue
            ends = torch.tensor(sizes).cumsum(0).tolist()
            parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
            idle = [part for part in parts if not bool(gradient[part].any())]
            if idle:
                yield parameter, idle
