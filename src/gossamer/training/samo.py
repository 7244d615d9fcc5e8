# SPDX-License-Identifier: Apache-2.0
"""SAMO as published (arXiv 2302.05045): dense 16-bit weights, everything else compressed.

Per entry of a weight there are 2 bytes of the weight; per kept entry 4 of a shared index, 2 and 4
of the gradient in 16 and 32 bits, 4 of a master, 8 of Adam's moments, and 2 of the copy in which
masters are rounded on their way into the dense weight: 24 f + 2.
"""

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import KINDS, sparse_layers
from gossamer.nn.layers import CompactWeight
from gossamer.training.optim import SmallStateOptimizer

__all__ = ["check_samo", "hold_samo"]


def hold_samo(
    model: nn.Module, optimizer: torch.optim.Optimizer, dtype: torch.dtype = torch.float16
) -> int:
    """Hold the compact layers of a model and their optimizer state as SAMO does, in place.

    Float16 needs a scaled loss: `gossamer.training.optim.scaling.LossScaler`, under autocast.

    Args:
        model: its layers are compact, in any mode, and float32.
        optimizer: of `gossamer.training.optim` with master="wide"; holds their values.
        dtype: torch.float16 or torch.bfloat16.

    Returns:
        how many layers there are.

    Raises:
        InputError: nothing was changed; a layer or the optimizer cannot do it.
    """
    check_samo(model, optimizer)
    layers: dict[str, CompactWeight] = dict(sparse_layers(model, "compact"))
    if not layers:
        raise InputError("samo: the model has no compact layer. Call gossamer.compact first.")
    for layer in layers.values():
        layer.take_back_values()
    values = [layer.values for layer in layers.values()]
    optimizer.split_masters(values, dtype=dtype)  # type: ignore[attr-defined]
    for layer in layers.values():
        layer.refresh()
        layer.switch("samo")
    return len(layers)


def check_samo(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError for masked or compact layers, or an optimizer, that `hold_samo` refuses."""
    if not isinstance(optimizer, SmallStateOptimizer):
        raise InputError(
            f"samo: {type(optimizer).__name__} knows no float32 masters beside 16-bit weights. Use"
            ' an optimizer of gossamer.training.optim with master="wide".'
        )
    owners: dict[nn.Parameter, str] = {}
    for name, layer in sparse_layers(model, "masked", "compact"):
        if "samo" not in KINDS[layer.kind].compact.MODES:
            raise InputError(
                f"samo: {name} is of kind {layer.kind}, which trains without a dense weight."
                " SAMO is for Linear and Conv2d; use another compaction."
            )
        trained = layer.trained()
        if trained in owners:
            raise InputError(
                f"samo: {name} shares its weight with {owners[trained]}, and a dense weight of SAMO"
                " belongs to one layer. Untie them, or use another compaction."
            )
        owners[trained] = name
        group = next((g for g in optimizer.param_groups if _holds(g, trained)), None)
        if group is not None and group["master"] != "wide":
            raise InputError(
                f"samo: the optimizer holds {name} with master={group['master']!r}; SAMO has"
                ' float32 masters and gradients. Build it with master="wide".'
            )
        if group is not None and trained.dtype is not torch.float32:
            raise InputError(
                f"samo: the weights of {name} are {trained.dtype}; expected float32, from which"
                " masters are made."
            )


def _holds(group: dict[str, object], param: nn.Parameter) -> bool:
    held = group["params"]
    return isinstance(held, list) and any(one is param for one in held)
