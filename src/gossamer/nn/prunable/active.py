# SPDX-License-Identifier: Apache-2.0
"""How many weights take part in the work on a token."""

from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.prunable.layers import EMBEDDINGS


def active_parameters(model: nn.Module) -> int:
    """Weights that are multiplied with every token: kept ones, without tables that are looked up.

    A table that is tied to a head counts once, as the head.
    """
    tables: set[int] = set()
    others: set[int] = set()
    for module in model.modules():
        weight = module._parameters.get("weight")
        (tables if isinstance(module, EMBEDDINGS) else others).add(id(weight))
    kept = {id(layer.trained()): layer.nnz for _, layer in sparse_layers(model)}
    return sum(
        kept.get(id(param), param.numel())
        for param in model.parameters()
        if id(param) not in tables - others
    )
