# SPDX-License-Identifier: Apache-2.0
"""What operations do to channels, as tables: which keep them apart, and which keep zeros zero.

Everything that is in no table mixes or moves channels, for all that is known, and fixes them.
"""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["KEEPS_ZEROS", "LOSES_ZEROS", "PRODUCTS", "SUMS", "is_spatial", "means_pixels"]

# Channel by channel, and f(0) = 0.
KEEPS_ZEROS: frozenset[Any] = frozenset(
    {
        *(nn.Identity, nn.Dropout, nn.Dropout2d, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU),
        *(nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Tanh, nn.Softsign, nn.AvgPool2d),
        *(nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool1d, nn.MaxPool1d),
        *(nn.AdaptiveAvgPool1d, nn.Upsample),
        *(F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_", F.relu6, F.leaky_relu, F.elu),
        *(F.gelu, F.silu, F.mish, F.hardswish, F.tanh, torch.tanh, "tanh", F.dropout, F.dropout2d),
        *(F.max_pool2d, torch.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.interpolate),
        *(F.adaptive_max_pool2d, "contiguous", "clone", "float", operator.neg),
    }
)
# Channel by channel, but f(0) is something else.
LOSES_ZEROS: frozenset[Any] = frozenset(
    {
        *(nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, F.sigmoid, torch.sigmoid, "sigmoid", "exp"),
        *(F.hardsigmoid, F.softplus, torch.exp),
    }
)
SUMS: frozenset[Any] = frozenset(
    {operator.add, operator.iadd, operator.sub, torch.add, torch.sub, "add", "add_", "sub"}
)
PRODUCTS: frozenset[Any] = frozenset({operator.mul, operator.imul, torch.mul, "mul", "mul_"})


def is_spatial(index: Any, axis: int) -> bool:
    """Whether a subscript takes whole channels: plain slices, and all of images and channels."""
    if not isinstance(index, tuple) or not all(isinstance(part, slice) for part in index):
        return False
    return all(part == slice(None) for part in index[: axis + 1])


def means_pixels(dims: Any, ndim: int, axis: int) -> bool:
    """Whether a mean is over dimensions behind the channels."""
    given = dims if isinstance(dims, tuple | list) else (dims,)
    if not given or not all(type(dim) is int for dim in given):
        return False
    return all((dim + ndim if dim < 0 else dim) > axis for dim in given)
