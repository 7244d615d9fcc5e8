# SPDX-License-Identifier: Apache-2.0
"""One call of a model: what goes in, what comes out, and what its layers are given.

`Batch` is a call as data; `input_shapes` says which sizes of images reach the layers.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import kind_name

__all__ = [
    "Answered",
    "Batch",
    "Shapes",
    "call_on_batch",
    "first_tensor",
    "input_shapes",
    "named_tensor",
    "rows_of",
]

Shapes = dict[int, tuple[int, ...]]  # of the input, by id of the layer


@dataclass(frozen=True)
class Batch:
    """One call of the model.

    Attributes:
        arguments: a mapping holds keyword arguments, a list or tuple arguments, else one argument.
        keep: bool [B, T], False where a position is padding; None if there is none.
        labels: what a loss compares the output with; None if it needs nothing.
        samples: a number per row of the inputs, the same in every epoch: what a teacher says of a
            row is then remembered. None: nothing is remembered.
    """

    arguments: Any
    keep: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    samples: tuple[int, ...] | None = None

    def run(self, model: nn.Module) -> Any:
        """The model's output on this batch."""
        return call_on_batch(model, self.arguments)

    def first_tensor(self) -> torch.Tensor | None:
        """The first tensor that the model gets: token ids, or an image."""
        return first_tensor(self.arguments)

    def call(self, model: nn.Module) -> Callable[[], Any]:
        """The same as `run`, later."""
        return lambda: self.run(model)


def call_on_batch(model: nn.Module, batch: Any) -> Any:
    """Call the model: a mapping holds keyword arguments, a list or tuple arguments, else one."""
    named = dict(batch) if isinstance(batch, Mapping) else {}
    arguments = list(batch) if isinstance(batch, list | tuple) else [batch]
    if isinstance(batch, Mapping):
        arguments = []
    try:
        return model(*arguments, **named)
    except TypeError as error:
        misfit = _misfit(model, arguments, named)
        if misfit is None:
            raise
        raise InputError(_does_not_fit(model, batch, misfit)) from error


def _misfit(model: nn.Module, arguments: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """Why the model cannot be called with these arguments; None where its forward takes them."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    return None


def _does_not_fit(model: nn.Module, batch: Any, misfit: str) -> str:
    form = f"a {type(batch).__name__}"
    cure = "Give what its forward takes: one argument, a tuple of them, or a mapping of names."
    if isinstance(batch, list | tuple):
        form = f"a {type(batch).__name__} of {len(batch)}, one argument each"
        if len(batch) == 2:
            cure = (
                "If these are pairs (input, target), give the inputs alone, data=[x for x, _ in"
                " pairs]; a method that uses a loss takes the pairs beside loss=..."
            )
    return (
        f"data: {type(model).__name__}.forward cannot be called with a batch ({form}): {misfit}."
        f" {cure}"
    )


def first_tensor(values: Any) -> torch.Tensor | None:
    """A tensor, or the first one of a tuple, list or mapping; input_ids before all others."""
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, Mapping):
        ids = values.get("input_ids")
        values = list(values.values()) if ids is None else [ids]
    if not isinstance(values, list | tuple):
        return None
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def named_tensor(outputs: Any, name: str) -> torch.Tensor | None:
    """The output of that name; None if there is none, or it is no tensor."""
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return found if isinstance(found, torch.Tensor) else None


def rows_of(output: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """[rows, D]: one row per sample or position that is not padding."""
    if keep is not None and output.ndim > keep.ndim and output.shape[: keep.ndim] == keep.shape:
        output = output[keep]
    return output.reshape(-1, output.shape[-1])


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


class Answered(nn.Module):
    """A model whose answer is known: losses that call a model cost no second forward."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self._outputs = outputs

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """What was given, whatever is asked."""
        return self._outputs
