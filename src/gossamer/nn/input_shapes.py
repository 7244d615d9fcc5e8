# SPDX-License-Identifier: Apache-2.0
"""What layers are given when a model runs: sizes of images are no property of a layer."""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError

Shapes = dict[int, tuple[int, ...]]  # of the input, by id of the layer


def input_shapes(
    model: nn.Module, example: torch.Tensor | None, kinds: tuple[type[nn.Module], ...], where: str
) -> Shapes:
    """The input shape of every layer of `kinds` in a run of `example`, in eval mode.

    No example gives no shapes. The model comes back as it was, statistics of batch norms included.
    """
    shapes: Shapes = {}
    if example is None:
        return shapes
    if not isinstance(example, torch.Tensor):
        raise InputError(
            f"{where}: example must be a tensor that the model takes, got {type(example).__name__}."
        )

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        shapes[id(module)] = tuple(inputs[0].shape)

    was_training = [(module, module.training) for module in model.modules()]
    handles = [
        module.register_forward_pre_hook(note)
        for module, _ in was_training
        if isinstance(module, kinds)
    ]
    try:
        model.eval()
        with torch.no_grad():
            model(example)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in was_training:
            module.training = training
    return shapes
