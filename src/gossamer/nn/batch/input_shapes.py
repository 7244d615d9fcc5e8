# SPDX-License-Identifier: Apache-2.0
"""What layers are given when a model runs: sizes of images are no property of a layer."""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch.call import call_on_batch, first_tensor
from gossamer.nn.layer_kinds import kind_name

Shapes = dict[int, tuple[int, ...]]  # of the input, by id of the layer


def input_shapes(model: nn.Module, example: Any, kind: str, where: str) -> Shapes:
    """The input shape of every layer of a kind in a run of `example`, in eval mode.

    No example gives no shapes; it is a tensor, or a tuple or mapping of arguments. The model comes
    back as it was, statistics of batch norms included.
    """
    shapes: Shapes = {}
    if example is None:
        return shapes
    if first_tensor(example) is None:
        raise InputError(
            f"{where}: example must be a tensor that the model takes, or a tuple or dict of"
            f" arguments that holds one, got {type(example).__name__}."
        )

    def note(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        image = first_tensor(inputs) if inputs else first_tensor(named)
        if image is not None:
            shapes[id(module)] = tuple(image.shape)

    was_training = [(module, module.training) for module in model.modules()]
    handles = [
        module.register_forward_pre_hook(note, with_kwargs=True)
        for module, _ in was_training
        if kind_name(module) == kind
    ]
    try:
        model.eval()
        with torch.no_grad():
            call_on_batch(model, example)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in was_training:
            module.training = training
    return shapes
