# SPDX-License-Identifier: Apache-2.0
"""Masks are fixed in the middle of a run: `compact`; the optimizer's state is carried along.

Every elementwise optimizer (SGD with momentum, Adam, AdamW, ...) takes exactly the steps it would
have taken on the masked layer, because kept entries never depend on pruned ones.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError
from gossamer.nn.forms import to_compact, why_not_compact
from gossamer.nn.layers import MaskedWeight, Mode
from gossamer.nn.surgery import (
    READ_BY_ATTENTION,
    disable_fast_paths,
    replace_module,
    unchanged_on_error,
)
from gossamer.nn.surgery.optimizer_state import check_state, convert_state, swap_parameter
from gossamer.ops.training.expansion import gather

__all__ = ["CompactionResult", "compact"]

_LEFT_OUT_PROJ = "nn.MultiheadAttention reads out_proj.weight directly, which a compact layer lacks"


@dataclass(frozen=True)
class CompactionResult:
    """What `compact` did.

    Attributes:
        compacted: names of the layers whose kept values are now the Parameter.
        left_masked: name -> why the layer stays masked.
        num_weights: entries of the compacted weights before.
        num_values: trainable entries after.
    """

    compacted: list[str]
    left_masked: dict[str, str]
    num_weights: int
    num_values: int

    def __str__(self) -> str:
        lines = [
            f"{len(self.compacted)} layers are compact: {self.num_weights:,} weights became"
            f" {self.num_values:,} trainable values."
        ]
        lines += [f"{name} stays masked: {why}." for name, why in self.left_masked.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Tied:
    """Masked layers that share one weight: usually a single one."""

    weight: nn.Parameter
    names: list[str]
    layers: list[MaskedWeight]

    @property
    def mask(self) -> torch.Tensor:
        return self.layers[0]._mask


def compact(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, mode: Mode = "jit"
) -> CompactionResult:
    """Fix the masks: kept values become the Parameters, in place, with gradient and state.

    Nothing is changed if an error is raised. Call it before wrapping the model in DDP or
    torch.compile. Tied layers stay tied.

    Args:
        model: holds layers that `gossamer.sparsify` masked.
        optimizer: holds their weights; it then holds the values, in the same groups, with momentum
            and moments of the kept weights. Layers it does not hold are converted all the same.
        mode: how compact layers multiply, see `gossamer.nn.Linear` and `gossamer.nn.Conv2d`.
    """
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer: expected a torch optimizer, got {type(optimizer).__name__}.")
    groups, left = _find(model)
    for group in groups:
        _check(model, group, optimizer)
    # Dense weights and moments are only left behind, so none of their numbers is copied.
    with unchanged_on_error(model, optimizer, contents=()):
        for group in groups:
            _convert(model, group, optimizer, mode)
        disable_fast_paths(model)
    return CompactionResult(
        compacted=[name for group in groups for name in group.names],
        left_masked=left,
        num_weights=sum(group.weight.numel() for group in groups),
        num_values=sum(int(group.mask.sum()) for group in groups),
    )


def _find(model: nn.Module) -> tuple[list[_Tied], dict[str, str]]:
    groups: dict[nn.Parameter, _Tied] = {}
    left = {}
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                f"{name or 'the model'} is wrapped in DistributedDataParallel, whose buckets hold"
                " the dense weights. Call compact(model, optimizer) first, then wrap."
            )
        if not isinstance(module, MaskedWeight):
            continue
        reason = why_not_compact(module)
        if reason is not None:
            left[name] = _LEFT_OUT_PROJ if reason == READ_BY_ATTENTION else reason
        else:
            weight = module.weight_parameter()
            group = groups.setdefault(weight, _Tied(weight, [], []))
            group.names.append(name)
            group.layers.append(module)
    if not groups and not left:
        raise InputError(
            "the model has no masked layer to compact."
            " Prune it first: gossamer.sparsify(model, sparsity=0.9)."
        )
    if isinstance(model, MaskedWeight):
        raise InputError(
            f"the model is itself one {type(model).__name__} and cannot be replaced in place."
            " Wrap it: model = torch.nn.Sequential(model)."
        )
    return list(groups.values()), left


def _check(model: nn.Module, group: _Tied, optimizer: torch.optim.Optimizer | None) -> None:
    """Refuse what would be lost or become wrong, before anything changes."""
    name, weight = group.names[0], group.weight
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        raise InputError(
            f"{name}.weight: a hook is registered on the Parameter and would be lost."
            " Remove it, compact, and register it on the layer's .values."
        )
    for other, layer in zip(group.names[1:], group.layers[1:], strict=True):
        if not torch.equal(layer._mask, group.mask):
            raise InputError(
                f"{other} shares the weight of {name} but has another mask."
                " Give both the same mask with set_mask."
            )
    for owner, module in model.named_modules():
        held = any(param is weight for param in module._parameters.values())
        if held and not any(module is layer for layer in group.layers):
            raise InputError(
                f"{name}.weight is also a parameter of {owner or 'the model'}"
                f" ({type(module).__name__}), which would keep the dense weight."
                " Untie them before pruning."
            )
    if optimizer is not None:
        check_state(optimizer, weight, f"{name}.weight")


def _convert(
    model: nn.Module, group: _Tied, optimizer: torch.optim.Optimizer | None, mode: Mode
) -> None:
    weight, mask, first = group.weight, group.mask, group.layers[0]

    def kept(dense: torch.Tensor) -> torch.Tensor:
        return gather(dense.detach(), mask)

    values = nn.Parameter(kept(weight), requires_grad=weight.requires_grad)
    if weight.grad is not None:
        values.grad = kept(weight.grad)
    if optimizer is not None:
        swap_parameter(optimizer, weight, values, convert_state(optimizer, weight, kept))
    for layer in group.layers:
        compacted = to_compact(layer, values, first.mask_bits, layer.pattern, mode)
        replace_module(model, layer, compacted)
