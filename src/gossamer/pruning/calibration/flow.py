# SPDX-License-Identifier: Apache-2.0
"""Calibration data flows through a model once, and stops in front of every layer.

All batches run side by side. Each stops in front of the first layer of a list that it meets; when
all have arrived there, the caller sees what is about to enter the layer and may change its weight.
Then they go on together, through the changed layer. So every layer is looked at with the inputs
that the layers before it, already pruned, really give it, and the whole model is computed only
once. The usual way, a pass for the statistics of a block and another one through the pruned block,
computes it twice and still sees the inner layers of a block with unpruned neighbours.

Nothing is assumed about the model: no list of blocks, no signatures, no tracing. A batch that
stands still is a greenlet whose stack holds the intermediate activations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import greenlet
import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.pruning.calibration.modes import hooked


@dataclass(frozen=True)
class Stop:
    """All batches stand in front of one layer.

    Attributes:
        module: the layer.
        inputs: what each batch is about to give it, in the order of the batches.
        batches: which batches these are.
    """

    module: nn.Module
    inputs: list[torch.Tensor]
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
            current.parent.switch((module, args[0]))

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
        self.arrived: tuple[nn.Module, torch.Tensor] | None = None
        self.num_stops = 0

    def go_on(self) -> tuple[nn.Module, torch.Tensor] | None:
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
