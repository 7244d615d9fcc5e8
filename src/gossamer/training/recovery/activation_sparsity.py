# SPDX-License-Identifier: Apache-2.0
"""How many zeros feed-forward activations hold, measured on data.

Legend: N rows (tokens), F neurons.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.batch import rows_of
from gossamer.nn.relufication import FeedForward, find_feed_forward


@dataclass(frozen=True)
class LayerZeros:
    """One feed-forward block.

    Attributes:
        name: of the block.
        layer: whose input was looked at.
        zeros: fraction of exact zeros in that input: the rows of the weight that need no reading.
        dead: fraction of neurons that were zero for every token.
        tokens: rows looked at.
        neurons: width of the input.
    """

    name: str
    layer: str
    zeros: float
    dead: float
    tokens: int
    neurons: int


@dataclass(frozen=True)
class ActivationZeros:
    """All feed-forward blocks of a model.

    Attributes:
        layers: in the order of the model.
        zeros: fraction over all of them.
    """

    layers: list[LayerZeros]
    zeros: float

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        wide = max(len(layer.name) for layer in self.layers)
        rows = [f"{x.name:<{wide}}  {x.zeros:6.1%}  dead {x.dead:6.1%}" for x in self.layers]
        return "\n".join([*rows, f"{'all':<{wide}}  {self.zeros:6.1%}"])


class _Counter:
    def __init__(self, block: FeedForward) -> None:
        self.block = block
        self.zeros = self.tokens = self.neurons = 0
        self.alive_F = torch.tensor(False)
        self.keep: torch.Tensor | None = None

    def look(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        active_NF = rows_of(args[0].detach(), self.keep) != 0
        self.tokens += len(active_NF)
        self.neurons = active_NF.shape[1]
        self.zeros += active_NF.numel() - int(active_NF.sum())
        self.alive_F = self.alive_F | active_NF.any(dim=0)

    def result(self) -> LayerZeros:
        if not self.tokens:
            raise InputError(f"{self.block.down_name}: saw no token. Do the batches reach it?")
        return LayerZeros(
            self.block.name,
            self.block.down_name,
            self.zeros / (self.tokens * self.neurons),
            float((~self.alive_F).float().mean()),
            self.tokens,
            self.neurons,
        )


def measure_activation_sparsity(
    model: nn.Module,
    batches: Iterable[Any],
    call: Callable[[nn.Module, Any], object],
    *,
    keep: Callable[[Any], torch.Tensor] | None = None,
) -> ActivationZeros:
    """Count zeros in front of the last layer of every feed-forward block, in eval mode.

    Args:
        model: blocks are those of `nn.relufication.find_feed_forward`.
        batches: data; padding should be told with `keep`.
        call: `call(model, batch)` runs the model.
        keep: `keep(batch)`, [B, T], is true where a position is no padding.
    """
    counters = [_Counter(block) for block in find_feed_forward(model)]
    if not counters:
        raise TargetError(
            f"measure_activation_sparsity: {type(model).__name__} has no feed-forward block of a"
            " known family."
        )
    with torch.no_grad(), ExitStack() as afterwards:
        for counter in counters:
            afterwards.enter_context(counter.block.down.register_forward_pre_hook(counter.look))
        afterwards.callback(model.train, model.training)
        model.eval()
        for batch in batches:
            for counter in counters:
                counter.keep = None if keep is None else keep(batch).bool()
            call(model, batch)
    layers = [counter.result() for counter in counters]
    entries = sum(counter.tokens * counter.neurons for counter in counters)
    return ActivationZeros(layers, sum(counter.zeros for counter in counters) / entries)
