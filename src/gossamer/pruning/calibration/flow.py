# SPDX-License-Identifier: Apache-2.0
"""Calibration data flows through a model once, and stops in front of every layer.

All batches run side by side. Each stops in front of the first layer of a list that it meets; when
all have arrived there, the caller sees what is about to enter the layer and may change its weight.
Then they go on together, through the changed layer. So every layer is looked at with the inputs
that the layers before it, already pruned, really give it, and the whole model is computed only
once. The usual way, a pass for the statistics of a block and another one through the pruned block,
computes it twice and still sees the inner layers of a block with unpruned neighbours.

Nothing is assumed about the model: no list of blocks, no signatures, no tracing. A batch that
stands still is a greenlet whose stack holds the intermediate activations. A model that was looked
at is as it was afterwards: modes, caches, requires_grad, hooks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import greenlet
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gossamer.errors import InputError
from gossamer.nn.batch import Batch

__all__ = [
    "Stop",
    "as_batches",
    "evaluating",
    "frozen",
    "hooked",
    "kept_flags",
    "stops",
]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without caches of keys and values inside, everything as it was afterwards.

    Decoders of transformers remember keys and values of every layer for a next token: with all
    batches on their way at once, that is more memory than everything else together.
    """
    modes = {module: module.training for module in model.modules()}
    configs = [getattr(module, "config", None) for module in modes]
    caching = {id(c): c for c in configs if getattr(c, "use_cache", None) is True}.values()
    try:
        model.eval()
        for config in caching:
            setattr(config, "use_cache", False)  # noqa: B010 (its type is not known here)
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for config in caching:
            setattr(config, "use_cache", True)  # noqa: B010


@contextmanager
def kept_flags(model: nn.Module) -> Iterator[None]:
    """Every parameter's requires_grad afterwards as before."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode and its parameters get no gradient; both are restored."""
    with evaluating(model), kept_flags(model):
        model.requires_grad_(False)
        yield


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks that are registered already act inside and are removed afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Stop:
    """All batches stand in front of one layer.

    Attributes:
        module: the layer.
        inputs: what each batch is about to give it, in the order of the batches: a tensor, or all
            arguments where there are several.
        batches: which batches these are.
    """

    module: nn.Module
    inputs: list[Any]
    batches: list[int]


def stops(calls: Sequence[Callable[[], Any]], modules: Sequence[nn.Module]) -> Iterator[Stop]:
    """Run `calls` side by side and yield a Stop in front of each of `modules`, each once.

    The body of the loop may change the module's weight; the batches go on when it ends. After the
    last module nothing more is computed. Modules that no batch reaches are never yielded.

    Args:
        calls: each runs the model on one batch; grad mode is the caller's.
        modules: layers that are called as modules with a tensor as first argument.
    """
    runners = [_Runner(call) for call in calls]
    left = set(modules)

    def pause(module: nn.Module, args: tuple[Any, ...]) -> None:
        current = greenlet.getcurrent()
        # A call of the model from elsewhere (an evaluation in the loop's body) has no parent to
        # report to and goes through.
        if module in left and current.parent is not None and args:
            # Experts are called with their tokens and how many each of them has.
            current.parent.switch((module, args[0] if len(args) == 1 else args))

    with hooked([module.register_forward_pre_hook(pause) for module in modules]):
        try:
            while left:
                places = {r: place for r in runners if (place := r.go_on()) is not None}
                if not places:
                    return
                # All stand at one place, unless the model routes batches differently: then those
                # that are behind go first, so that the others meet them where their ways join.
                module, _ = places[min(places, key=lambda runner: runner.num_stops)]
                here = {r: x for r, (reached, x) in places.items() if reached is module}
                yield Stop(module, list(here.values()), [runners.index(r) for r in here])
                left.discard(module)
                for runner in here:
                    runner.arrived = None
                    runner.num_stops += 1
        finally:
            for runner in runners:
                runner.end()


class _Runner:
    """One batch on its way through the model."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._greenlet = greenlet.greenlet(lambda _: call())
        self.arrived: tuple[nn.Module, Any] | None = None
        self.num_stops = 0

    def go_on(self) -> tuple[nn.Module, Any] | None:
        """Until the next stop or the end; a batch that waits, or is through, stays as it is.

        Gives where it stands, and what it is about to give the layer there.
        """
        if self.arrived is None and not self._greenlet.dead:
            self._greenlet.parent = greenlet.getcurrent()
            reached = self._greenlet.switch(None)
            self.arrived = None if self._greenlet.dead else reached
        return self.arrived

    def end(self) -> None:
        """Leave the model where it stands; what the batch holds is freed."""
        self.arrived = None
        if not self._greenlet.dead:
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.throw(greenlet.GreenletExit)


def as_batches(data: Iterable[Any] | None, asker: str) -> list[Batch]:
    """All batches of `data`, held together; a mapping's attention_mask says what is padding."""
    if data is None:
        raise InputError(f"{asker} needs calibration data: give batches with data=[...].")
    if isinstance(data, torch.Tensor | Mapping | str):
        raise InputError(
            f"data: expected a list of batches, got one {type(data).__name__}. Write data=[batch]."
        )
    batches = [item if isinstance(item, Batch) else Batch(item, _padding(item)) for item in data]
    if not batches:
        raise InputError(f"data: is empty, but {asker} needs at least one batch.")
    return batches


def _padding(arguments: Any) -> torch.Tensor | None:
    mask = arguments.get("attention_mask") if isinstance(arguments, Mapping) else None
    return mask.bool() if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None
