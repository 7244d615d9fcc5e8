# SPDX-License-Identifier: Apache-2.0
"""The inputs of each layer on a few batches of data, for scorers that look at activations."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import call_on_batch
from gossamer.pruning.calibration.modes import evaluating, hooked
from gossamer.pruning.targets import Target

# Rows kept per layer: the first ones seen. 4096 x 768 floats are 12 MiB.
MAX_ROWS = 4096


def collect_inputs(
    model: nn.Module, targets: list[Target], data: Iterable[Any] | None, scorer: str
) -> dict[str, torch.Tensor]:
    """Rows [T, K] that enter each target while the model reads `data`, T <= MAX_ROWS.

    The model runs in eval mode without gradients and gets its mode back.

    Args:
        model: called once per batch.
        targets: Linear layers.
        data: batches; a tensor is the first argument of the model, a list or tuple its arguments,
            a mapping its keyword arguments.
        scorer: who asks, for messages.
    """
    if data is None:
        raise InputError(f"scorer {scorer!r} needs activations: give batches with data=[...].")
    for target in targets:
        if not isinstance(target.module, nn.Linear):
            raise InputError(
                f"{target.name}: scorer {scorer!r} needs activations, which are collected for"
                " Linear layers only. Add ignore=['Conv2d']."
            )
    rows: dict[str, list[torch.Tensor]] = {target.name: [] for target in targets}
    handles = [
        module.register_forward_pre_hook(_recorder(rows[target.name]))
        for target in targets
        for module in (target.module, *(twin for _, twin in target.twins))
    ]
    with hooked(handles), evaluating(model), torch.no_grad():
        for batch in data:
            call_on_batch(model, batch)
    for name, seen in rows.items():
        if not seen:
            raise InputError(
                f"{name}: no calibration batch reached this layer, so scorer {scorer!r} cannot"
                f" rank it. Give other data, or add {name!r} to ignore=[...]."
            )
    return {name: torch.cat(seen) for name, seen in rows.items()}


def _recorder(seen: list[torch.Tensor]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        missing = MAX_ROWS - sum(len(part) for part in seen)
        if missing > 0 and args:
            flat = args[0].detach().reshape(-1, args[0].shape[-1])
            if len(flat):
                seen.append(flat[:missing].clone())

    return record
