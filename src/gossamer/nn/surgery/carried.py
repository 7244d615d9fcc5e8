# SPDX-License-Identifier: Apache-2.0
"""What users hung on a module, which is lost if another module or a kernel takes its place.

A layer is more than its weights: hooks, a `forward` of its own, a parametrization, further tensors.
Whoever replaces a layer asks `carried`; whoever computes what a module would have computed, and
leaves the module where it is, asks `carried_by_calls`. Both say in words what is in the way, None
if nothing is. The rule: what cannot be kept is refused for that module, by name, never dropped.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod

from gossamer.nn.layer_kinds import KINDS
from gossamer.nn.layers import CompactWeight, MaskedOutProj
from gossamer.nn.layers.experts import GroupedLinear
from gossamer.nn.layers.tables import Embedding, EmbeddingBag
from gossamer.nn.surgery.left import LEFT

__all__ = [
    "Watch",
    "call_hooks",
    "carried",
    "carried_by_calls",
    "carried_by_state",
    "hand_over",
    "idle",
]

PRUNED_BY_TORCH = (
    "torch.nn.utils.prune computes its weight in a hook; call gossamer.io.adopt_pruned(model)"
    " first, which makes it a masked layer"
)

_CALL_HOOKS = {
    "_forward_pre_hooks": "a forward pre-hook",
    "_forward_hooks": "a forward hook",
    "_backward_pre_hooks": "a backward pre-hook",
    "_backward_hooks": "a backward hook",
}
_STATE_HOOKS = {
    "_state_dict_hooks": "a state_dict hook",
    "_state_dict_pre_hooks": "a state_dict pre-hook",
    "_load_state_dict_pre_hooks": "a load_state_dict pre-hook",
    "_load_state_dict_post_hooks": "a load_state_dict hook",
}
# Installed by transformers when hidden states were asked for once; they do nothing in other calls,
# and calls that ask for hidden states run the stock layers.
_IDLE_HOOKS = "transformers.utils.output_capturing"
_IDLE = "_gossamer_idle"
_LIBRARIES = ("torch", "transformers", "gossamer")


def carried_by_calls(module: nn.Module) -> str | None:
    """What a call of `module` does besides the forward of its class; None if nothing."""
    for table, words in _CALL_HOOKS.items():
        hooks = [h for h in module.__dict__[table].values() if not _is_idle(h)]
        if any(isinstance(hook, BasePruningMethod) for hook in hooks):
            return PRUNED_BY_TORCH
        if hooks:
            return f"it carries {words}"
    if own := own_call(module):
        return own
    # Hooks on every module at once.
    for table in _CALL_HOOKS:
        if getattr(torch_module, f"_global{table}"):
            return "a hook is registered for all modules (register_module_*_hook)"
    return None


def own_call(module: nn.Module) -> str | None:
    """Whether a call of `module` runs something else than the forward of its class."""
    if "forward" in module.__dict__ or "__call__" in module.__dict__:
        return "its forward was replaced on this instance"
    if module.__dict__.get("_compiled_call_impl") is not None:
        return "it was compiled by itself with module.compile()"
    if not _is_as_written(type(module).__call__):
        return f"{type(module).__name__} has a __call__ of its own"
    return None


def carried_by_state(module: nn.Module) -> str | None:
    """What saving or loading `module` does besides what its class does; None if nothing."""
    found = (words for table, words in _STATE_HOOKS.items() if module.__dict__[table])
    return next((f"it carries {words}" for words in found), None)


def call_hooks(module: nn.Module) -> list[Any]:
    """Hooks that run when `module` is called or differentiated."""
    return [hook for table in _CALL_HOOKS for hook in module.__dict__[table].values()]


class Watch:
    """Modules that are computed without being called; whether somebody hooked one of them since."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = tuple(modules)
        # Backward hooks have nothing to do at inference.
        tables = ("_forward_pre_hooks", "_forward_hooks")
        self._tables = tuple(m.__dict__[table] for m in self._modules for table in tables)

    def finds_hooks(self) -> bool:
        """Whether the modules must be called one by one; it costs microseconds for a hundred."""
        return any(self._tables) and any(carried_by_calls(m) is not None for m in self._modules)


def idle(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook for which no module has to be called that would not be: it times those that are."""
    hook.__dict__[_IDLE] = True
    return hook


def _is_idle(hook: Any) -> bool:
    return getattr(hook, "__module__", None) == _IDLE_HOOKS or getattr(hook, _IDLE, False)


def _is_as_written(function: Any) -> bool:
    """Whether a method is as its library wrote it."""
    return str(getattr(function, "__module__", "")).split(".")[0] in _LIBRARIES


_WEIGHTS = frozenset({"weight", "bias"})
_MASKED = _WEIGHTS | {"mask_bits", "_mask", "_reach"}
# Tensors that a layer has by itself. Other classes have a forward of their own.
_TENSORS: dict[type[nn.Module], frozenset[str]] = {
    nn.BatchNorm2d: _WEIGHTS | {"running_mean", "running_var", "num_batches_tracked"},
    MaskedOutProj: _MASKED,
}
for _kind in KINDS.values():
    if _kind.has_masks:
        _TENSORS[_kind.stock[0]] = _WEIGHTS
        _TENSORS[_kind.masked] = _MASKED
        _TENSORS[_kind.compact] = frozenset({"values", "bias", "mask_bits"})
for _stock in (nn.Embedding, nn.EmbeddingBag):
    _TENSORS[_stock] = frozenset({"weight"})
for _table in (Embedding, EmbeddingBag):
    _TENSORS[_table] = frozenset({"weight", "row_map", "scales", "top", "counts"})
# Attributes that gossamer leaves on layers, that compact layers have, and that packed ones have.
_NOTES = frozenset({"pattern", "gradient_sum", "choices", LEFT})
_COMPACT = frozenset({"matrix_shape", "mode", "settings", "_dense", "_dense_source", "_home"})
_COMPACT |= {"_counted"}
_TAKEN = frozenset({"runs", "format", "density", "packed", "settings", "dense_weight"})


def carried(layer: nn.Module, *, inherits_hooks: bool = False) -> str | None:
    """What a layer carries that another layer in its place would not; None if nothing.

    Plain attributes are no obstacle: `hand_over` gives them to the new layer.

    Args:
        layer: Linear, Conv2d, BatchNorm2d or a table, stock, masked or compact.
        inherits_hooks: the new layer is a module like the old one and gets its hooks by
            `gossamer.nn.surgery.inherit_hooks`.
    """
    if is_parametrized(layer):
        return "it is parametrized (torch.nn.utils.parametrize); make that permanent first"
    reason = own_call(layer) if inherits_hooks else carried_by_calls(layer)
    reason = reason or carried_by_state(layer)
    if reason is not None:
        return reason
    tensors = _TENSORS.get(type(layer))
    if tensors is None or not _is_as_written(type(layer).forward):
        return f"{type(layer).__name__} is a class of its own, whose forward may do anything"
    computed = sorted(tensors & layer.__dict__.keys())
    if computed:
        return f"its {computed[0]} is computed, no Parameter of the layer"
    further = sorted({*layer._parameters, *layer._buffers} - tensors)
    if further:
        return f"it holds a tensor of its own, {further[0]!r}"
    if layer._modules:
        return f"it holds a module, {next(iter(layer._modules))!r}"
    plain = (nn.Parameter, nn.Buffer)
    special = [p for p in layer._parameters.values() if p is not None and type(p) not in plain]
    if special:
        return f"its weights are {type(special[0]).__name__}, no plain Parameters"
    hidden = [name for name in _attributes(layer) if hasattr(type(layer), name) or name in _TAKEN]
    return f"its attribute {hidden[0]!r} was replaced on this instance" if hidden else None


def hand_over(new: nn.Module, old: nn.Module) -> None:
    """Give `new` the plain attributes that users set on `old`."""
    for name in _attributes(old):
        new.__dict__.setdefault(name, old.__dict__[name])


def _attributes(layer: nn.Module) -> list[str]:
    """What users set on a layer, by name."""
    known = _stock_attributes() | _NOTES
    if isinstance(layer, CompactWeight):
        known |= _COMPACT
    return [name for name in layer.__dict__ if name not in known]


@functools.cache
def _stock_attributes() -> frozenset[str]:
    """Those that layers have from their constructors."""
    stock = (nn.Conv2d(1, 1, 1, device="meta"), nn.Linear(1, 1, device="meta"))
    more = (nn.BatchNorm2d(1, device="meta"), Embedding(1, 1, device="meta"))
    tables = (nn.Embedding(1, 1, device="meta"), nn.EmbeddingBag(1, 1, device="meta"))
    experts = GroupedLinear(1, 1, 1, device="meta")
    return frozenset().union(*map(vars, (*stock, *more, *tables, experts)))
