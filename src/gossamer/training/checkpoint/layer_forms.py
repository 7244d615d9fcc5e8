# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model are masked or compact, and how to bring a fresh model to the same state.

A run that is resumed after compaction builds the dense model anew; masks come from the checkpoint.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, GossamerError
from gossamer.formats.bits import unpack_bits
from gossamer.io.safe_files.tensor_header import DTYPE_NAMES, dtype_name
from gossamer.nn import (
    CompactWeight,
    MaskedConv2d,
    MaskedLinear,
    MaskedWeight,
    attention_outputs,
    replace_module,
)
from gossamer.nn.compaction import compact
from gossamer.nn.masked import MaskedOutProj
from gossamer.patterns.text import parse_pattern


def layer_forms(model: nn.Module) -> dict[str, Any]:
    """Name -> form, pattern and mode of every masked and compact layer."""
    forms: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, CompactWeight):
            pattern = str(module.pattern)
            forms[name] = {
                "form": "compact",
                "pattern": pattern,
                "mode": module.mode,
                "dtype": dtype_name(module.values.dtype),
            }
        elif isinstance(module, MaskedWeight):
            forms[name] = {"form": "masked", "pattern": str(module.pattern)}
    return forms


def restore_forms(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    forms: Mapping[str, Mapping[str, Any]],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Mask and compact layers of `model` as `forms` says; the optimizer follows.

    Args:
        model: as it was built; layers that have their form already are left alone.
        optimizer: holds its parameters.
        forms: from `layer_forms`.
        tensors: the model's saved state, for the masks.
    """
    modules = dict(model.named_modules())
    try:
        for name, entry in forms.items():
            module = modules.get(name)
            if module is None:
                raise ArtifactError(f"{name}: the checkpoint has this layer, the model has not.")
            if not isinstance(module, CompactWeight):
                _mask(model, module, entry, tensors[f"{name}.mask_bits"])
        now = layer_forms(model)
        if any(now[name]["form"] != entry["form"] for name, entry in forms.items()):
            compact(model, optimizer)
        modules = dict(model.named_modules())
        for name, entry in forms.items():
            module = modules[name]
            if isinstance(module, CompactWeight):
                module.mode = entry["mode"]
                # Masters that were split: the Parameter object stays, as the optimizer knows it.
                module.values.data = module.values.data.to(DTYPE_NAMES[entry["dtype"]])
                module.refresh()
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"layers: the saved forms are not usable ({error}).") from error
    if layer_forms(model) != {name: dict(entry) for name, entry in forms.items()}:
        raise ArtifactError(
            "layers: the checkpoint's masked and compact layers are not those of this model."
            " Resume with the recipe and the model of that run."
        )


def _mask(
    model: nn.Module, module: nn.Module, entry: Mapping[str, Any], bits: torch.Tensor
) -> None:
    try:
        pattern = parse_pattern(entry["pattern"])
        if isinstance(module, MaskedWeight):
            module.pattern = pattern
            module.set_mask(unpack_bits(bits, module.matrix_shape[1]))
        elif isinstance(module, nn.Conv2d):
            mask = unpack_bits(bits, module.weight.shape[1:].numel())
            replace_module(model, module, MaskedConv2d.from_dense(module, mask, pattern))
        elif isinstance(module, nn.Linear):
            kind = MaskedOutProj if id(module) in attention_outputs(model) else MaskedLinear
            mask = unpack_bits(bits, module.in_features)
            replace_module(model, module, kind.from_dense(module, mask, pattern))
        else:
            raise ArtifactError(f"a {type(module).__name__} cannot be masked.")
    except GossamerError as error:
        raise ArtifactError(f"layers: a saved mask does not fit the model ({error})") from error
