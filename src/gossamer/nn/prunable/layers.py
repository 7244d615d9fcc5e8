# SPDX-License-Identifier: Apache-2.0
"""Which layers can have a mask, and which of them are left alone unless they are named."""

from torch import nn
from torch.nn.parameter import UninitializedParameter

from gossamer.nn.layer_kinds import KINDS
from gossamer.nn.layers import CompactWeight
from gossamer.nn.layers.tables import TableLayer

_MASKED_KINDS = tuple(kind for kind in KINDS.values() if kind.has_masks)
PRUNABLE = tuple(stock for kind in _MASKED_KINDS for stock in kind.stock)
HEAD_NAMES = frozenset({"lm_head", "head", "classifier"})
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag, TableLayer)

_KNOWN_FORWARDS = {known.forward for kind in _MASKED_KINDS for known in (*kind.stock, kind.masked)}


def why_not_prunable(module: nn.Module) -> str | None:
    """Why a Linear or Conv2d cannot be masked; None if it can."""
    if isinstance(module, CompactWeight):
        return "it is compact, its mask is fixed; use remap(mask) or to_dense()"
    if not isinstance(module, PRUNABLE):
        titles = " nor ".join(kind.title for kind in _MASKED_KINDS)
        return f"{type(module).__name__} is neither {titles}"
    weight = module._parameters.get("weight")
    if weight is None:
        return (
            "its weight is computed (parametrization, weight_norm, torch.nn.utils.prune); make it"
            " permanent, or call gossamer.io.adopt_pruned(model) where torch.nn.utils.prune did it"
        )
    if isinstance(weight, UninitializedParameter):
        return "its weight is not initialised yet; run the model once"
    if has_own_forward(module):
        return f"{type(module).__name__} has a forward of its own, which a mask would bypass"
    return None


def has_own_forward(module: nn.Module) -> bool:
    """Whether a Linear or Conv2d computes something else than its class does in torch."""
    return type(module).forward not in _KNOWN_FORWARDS or "forward" in module.__dict__


def is_head(name: str) -> bool:
    """Whether the last part of a dotted name says that the layer gives the model's answer."""
    return name.rsplit(".", 1)[-1] in HEAD_NAMES
