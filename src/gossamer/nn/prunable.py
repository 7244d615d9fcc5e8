# SPDX-License-Identifier: Apache-2.0
"""Which layers can have a mask, where the weights are that pruning leaves dense, what works.

A model can hold most of its weights in experts, recurrent layers or tables that no mask reaches.
Its pruned layers then say little about the model, so reports name the rest, by reason and share.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.nn.parameter import UninitializedParameter

from gossamer.nn.layer_kinds import KINDS, sparse_layers
from gossamer.nn.layer_weights import holders_of
from gossamer.nn.layers import CompactWeight, MaskedWeight
from gossamer.nn.layers.tables import TableLayer

__all__ = [
    "EMBEDDINGS",
    "PRUNABLE",
    "LeftDense",
    "active_parameters",
    "is_head",
    "left_dense",
    "left_lines",
    "why_not_prunable",
]

_MASKED_KINDS = tuple(kind for kind in KINDS.values() if kind.has_masks)
PRUNABLE = tuple(stock for kind in _MASKED_KINDS for stock in kind.stock)
HEAD_NAMES = frozenset({"lm_head", "head", "classifier"})
ROUTER_NAMES = frozenset({"router", "shared_expert_gate"})
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
    """Whether the last part of a dotted name says that the layer gives the model's answer.

    Layers that choose experts count as such: they are small, and what they say decides much.
    """
    return name.rsplit(".", 1)[-1] in HEAD_NAMES | ROUTER_NAMES


# Smaller parts are in the data of a report, not on its lines.
_WORTH_A_LINE = 0.001
_MAX_NAMES = 3
_TIED = "embeddings and the layers tied to them, left out by default"
_EMBEDDINGS = "embeddings, which are looked up and not multiplied"
_HEADS = "heads, left out by default"
_ROUTERS = "routers, left out by default"
_NO_TARGETS = "layers that were not among the targets"
_COMPUTED = (
    "weights that are computed (parametrization, weight_norm, torch.nn.utils.prune), which cannot"
    " be pruned"
)
_ATTENTION = "q, k and v of MultiheadAttention, which are no layers and cannot be pruned"


@dataclass(frozen=True)
class LeftDense:
    """Weights that stay dense for one reason.

    Attributes:
        reason: which kind of weights they are; says so where it cannot be pruned.
        share: of all parameters of the dense model.
        weights: how many.
        names: of the Parameters.
    """

    reason: str
    share: float
    weights: int
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        alike: dict[str, list[str]] = {}
        for name in self.names:
            alike.setdefault(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name), []).append(name)
        found = [names[0] if len(names) == 1 else form for form, names in alike.items()]
        more = f" and {len(found) - _MAX_NAMES} more" if len(found) > _MAX_NAMES else ""
        names = ", ".join(found[:_MAX_NAMES])
        return f"{self.share:.1%} of the weights are in {self.reason}: {names}{more}."


def left_dense(
    model: nn.Module, packed: Callable[[nn.Module], int | None] = lambda module: None
) -> list[LeftDense]:
    """Parameters of two dimensions or more that no pruned layer holds, the largest part first.

    Args:
        model: masked, compact or compiled.
        packed: weights of a layer that is pruned in a form of its own; None for other modules.
    """
    holders = {
        param: places
        for param, places in holders_of(model).items()
        if not isinstance(param, UninitializedParameter)
    }
    pruned, total = set(), sum(param.numel() for param in holders)
    for module in model.modules():
        count = packed(module)
        if isinstance(module, MaskedWeight):
            pruned.add(module.weight_parameter())
        elif isinstance(module, CompactWeight) and module.values not in pruned:
            pruned.add(module.values)
            total += module.matrix_shape[0] * module.matrix_shape[1] - module.nnz
        elif count is not None:
            held = module._parameters.get("weight")
            if held is None:
                total += count
            else:
                pruned.add(held)
    groups: dict[str, dict[str, int]] = {}
    for param, places in holders.items():
        if param.ndim >= 2 and param.numel() and param not in pruned:
            owner, module = places[0]
            key = next(key for key, held in module._parameters.items() if held is param)
            name = f"{owner}.{key}" if owner else key
            groups.setdefault(_reason(param, places, key), {})[name] = param.numel()
    rows = [
        LeftDense(reason, (weights := sum(found.values())) / max(1, total), weights, list(found))
        for reason, found in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.weights)


def left_lines(rows: Sequence[LeftDense]) -> list[str]:
    """The parts that matter, one sentence each."""
    return [str(row) for row in rows if row.share >= _WORTH_A_LINE]


def _reason(param: nn.Parameter, places: list[tuple[str, nn.Module]], key: str) -> str:
    if any(isinstance(module, EMBEDDINGS) for _, module in places):
        return _TIED if len(places) > 1 else _EMBEDDINGS
    name, module = places[0]
    kind = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        return _ATTENTION
    if kind == "ParametrizationList" or (isinstance(module, PRUNABLE) and key != "weight"):
        return _COMPUTED
    if isinstance(module, PRUNABLE):
        if has_own_forward(module):
            return f"{kind} layers with a forward of their own, which cannot be pruned"
        if name.rsplit(".", 1)[-1] in ROUTER_NAMES:
            return _ROUTERS
        return _HEADS if is_head(name) else _NO_TARGETS
    if param.ndim > 2 and not type(module).__module__.startswith("torch.nn."):
        return f"{param.ndim}-D parameters of {kind}, which cannot be pruned"
    return f"{kind}, which cannot be pruned"


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
