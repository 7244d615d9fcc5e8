# SPDX-License-Identifier: Apache-2.0
"""Hidden states of a model's repeated blocks, whatever its family: outputs seen by hooks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import first_tensor


def block_names(model: nn.Module) -> list[str]:
    """Children of the nn.ModuleList that holds most weights: the layers of a transformer."""
    lists = {
        name: sum(parameter.numel() for parameter in module.parameters())
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module)
    }
    if not lists:
        raise InputError(
            "distillation of hidden states: the model has no nn.ModuleList of blocks. Name the"
            " modules to compare with blocks=[...], or give hidden weight 0."
        )
    # The outermost of equals comes first.
    largest = max(lists, key=lambda name: lists[name])
    prefix = f"{largest}." if largest else ""
    return [f"{prefix}{name}" for name, _ in model.get_submodule(largest).named_children()]


@contextmanager
def captured(model: nn.Module, names: Sequence[str]) -> Iterator[list[torch.Tensor]]:
    """The outputs of the named modules in the calls inside, in the order in which they come."""
    seen: list[torch.Tensor] = []

    def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
        found = first_tensor(outputs)
        if found is not None:
            seen.append(found)

    handles = []
    try:
        for name in names:
            try:
                module = model.get_submodule(name)
            except AttributeError as error:
                raise InputError(f"distillation: the model has no module {name!r}.") from error
            handles.append(module.register_forward_hook(hook))
        yield seen
    finally:
        for handle in handles:
            handle.remove()
