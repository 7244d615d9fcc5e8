# SPDX-License-Identifier: Apache-2.0
"""The weight of a layer in any form: as a sparse matrix, as a tensor, its shape and its density.

Each function takes an ordinary layer as well as a masked, compact or packed one. What kind of layer
it is, and in which form, says `nn/layer_kinds.py`.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from gossamer.formats import SparseMatrix
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.layers.tables import TableLayer
from gossamer.patterns import detect_pattern

__all__ = [
    "Holders",
    "density_of",
    "holders_of",
    "matrix_of",
    "num_parts",
    "plain_weight",
    "shape_of",
    "weight_of",
]

Holders = dict[nn.Parameter, list[tuple[str, nn.Module]]]


def matrix_of(layer: nn.Module) -> SparseMatrix:
    """The sparse weight of a layer; of an ordinary one, what is not zero and the pattern of it.

    Tables have none: they have `rows()`.
    """
    if isinstance(layer, SparseLayer):
        return layer.matrix()
    weight = weight_of(layer)
    mask_RK = weight.flatten(1) != 0
    return SparseMatrix.from_dense(weight, mask_RK, detect_pattern(mask_RK))


def weight_of(layer: nn.Module) -> torch.Tensor:
    """The weight of a layer in any form, in its own shape, exact zeros included; no gradients."""
    if isinstance(layer, SparseLayer | TableLayer):
        return layer.dense_weight()
    with torch.no_grad():
        weight: Any = layer.weight  # of subclasses, too: it may be computed
    found: torch.Tensor = weight.detach()
    return found


def shape_of(layer: nn.Module) -> tuple[int, ...]:
    """The shape of the weight of a layer in any form."""
    if isinstance(layer, SparseLayer | TableLayer):
        return layer.weight_shape
    return tuple(weight_of(layer).shape)


def num_parts(layer: nn.Module) -> int:
    """Groups of rows that see inputs of their own: experts; 1 for every other layer."""
    return int(getattr(layer, "num_experts", 1))


def density_of(layer: nn.Module) -> float:
    """Kept fraction of a sparse layer; of an ordinary one, the share that is not zero.

    That of a table is the share of rows that are stored.
    """
    if isinstance(layer, TableLayer):
        return len(layer.rows().data) / max(layer.num_embeddings, 1)
    if isinstance(layer, SparseLayer):
        return layer.density
    weight = weight_of(layer)
    return float((weight != 0).float().mean()) if weight.numel() else 1.0


def plain_weight(layer: nn.Module) -> torch.Tensor | None:
    """The weight of an ordinary linear layer, which others may multiply with in its stead.

    None for sparse layers and for those whose calls somebody watches: they must be called.
    """
    watched = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    if type(layer) is not nn.Linear or watched or parametrize.is_parametrized(layer):
        return None
    return layer.weight


def holders_of(model: nn.Module) -> Holders:
    """Every Parameter of a model with the names of the modules that hold it, and these."""
    holders: Holders = {}
    for name, module in model.named_modules():
        for param in module._parameters.values():
            if param is not None:
                holders.setdefault(param, []).append((name, module))
    return holders
