# SPDX-License-Identifier: Apache-2.0
"""Which heads and filters a model has, and a smaller model with some of them.

What cannot be cut is a typed error that says why. Before they are cut, one value per unit may
multiply its columns: it acts on the input of the consumer (output projection, down matrix), so that
one hook serves every family.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.families import answers, block_of
from gossamer.nn.surgery.slimming import UnitGroup, cut_units, find_groups, is_matrix_layer
from gossamer.pruning.calibration import hooked

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def find_units(model: nn.Module) -> list[UnitGroup]:
    """Groups of units in model order: heads, then filters, of every block.

    Raises:
        TargetError: unknown architecture, layers that are not plain, shared or computed weights.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    names: dict[nn.Module, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        family = block_of(module)
        if family is None:
            continue
        if module in names:
            raise TargetError(
                f"{name}: is the same block as {names[module]}. A block that is used twice has"
                " one set of units for two places, which is not supported."
            )
        names[module] = name
        _check_layers(name, module, family.linears)
    if not names:
        raise TargetError(_unknown(model))
    groups = find_groups(model)
    _check_sharing(model, groups)
    return groups


def slim(model: nn.Module, kept: Sequence[Sequence[int]]) -> nn.Module:
    """Cut all units but `kept` out of `model`, in place, and return it.

    A sub-layer with nothing left still adds its output bias. The result equals the model whose
    other units are masked (`scaled_units`).

    Args:
        model: of a family of `find_units`.
        kept: per group of `find_units(model)`, ascending unit numbers.
    """
    groups = find_units(model)
    if len(kept) != len(groups):
        raise InputError(f"kept: one list per group is due, {len(groups)}, got {len(kept)}.")
    with torch.no_grad():
        for group, units in zip(groups, kept, strict=True):
            cut_units(group, units)
    return model


def scaled_units(
    groups: Sequence[UnitGroup], factors: Sequence[torch.Tensor]
) -> AbstractContextManager[None]:
    """Inside, every group's units are multiplied by its factors [units]."""

    def scale(group: UnitGroup, factor: torch.Tensor) -> Any:
        wide = factor.repeat_interleave(group.width)
        return lambda module, args: (args[0] * wide, *args[1:])

    return hooked(
        [
            group.consumer.register_forward_pre_hook(scale(group, factor))
            for group, factor in zip(groups, factors, strict=True)
        ]
    )


def mask_factors(groups: Sequence[UnitGroup], kept: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """One for kept units, zero for the others."""
    factors = []
    for group, units in zip(groups, kept, strict=True):
        factor = next(group.consumer.parameters()).new_zeros(group.count)
        factor[list(units)] = 1
        factors.append(factor)
    return factors


def _check_layers(block_name: str, block: nn.Module, linears: Iterable[str]) -> None:
    for part in linears:
        try:
            layer = block.get_submodule(part)
        except AttributeError:
            continue  # an attention without heads has no projections any more
        where = f"{block_name}.{part}"
        # What a hook computes before every forward is an ordinary attribute.
        if hasattr(layer, "parametrizations") or "weight" in layer.__dict__:
            raise TargetError(
                f"{where}: its weight is computed (weight_norm, parametrization or"
                " torch.nn.utils.prune). Make it permanent before units are cut out."
            )
        if not is_matrix_layer(layer):
            raise TargetError(
                f"{where}: is a {type(layer).__name__}; units can be cut out of torch.nn.Linear and"
                " transformers' Conv1D only. Make masked or compact layers dense first (to_dense)."
            )


def _check_sharing(model: nn.Module, groups: list[UnitGroup]) -> None:
    owners: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(parameter, []).append(name)
    for group in groups:
        for layer in (*group.producers, group.consumer):
            for parameter in layer.parameters(recurse=False):
                if len(owners[parameter]) > 1:
                    raise TargetError(
                        f"{group.name}: {' and '.join(owners[parameter][:3])} are one tensor;"
                        " cutting one would cut the other. Untie them first."
                    )


def _unknown(model: nn.Module) -> str:
    supported = ", ".join(answers("block"))
    fused = [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, _FUSED)
    ]
    if fused:
        return (
            f"{fused[0]}: keeps q, k and v in one Parameter (in_proj_weight) and reads its layers'"
            f" weights directly, so no head can be cut out. Supported blocks: {supported}."
        )
    kinds = sorted({type(module).__name__ for module in model.modules()})
    return (
        "no transformer block of a known family was found; the model holds"
        f" {', '.join(kinds[:12])}."
        f" Supported blocks: {supported}."
    )
