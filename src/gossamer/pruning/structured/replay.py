# SPDX-License-Identifier: Apache-2.0
"""Blocks run one at a time: their calls are recorded once and replayed with other hidden states.

Only the hidden states of one block are held, so memory does not grow with depth.
Legend: N tokens that count, K inputs of a consumer, D width of the model.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.pruning.calibration.flow import hooked
from gossamer.pruning.structured.units import Loss

# keep(batch): bool or 0/1 tensor [B, T] per call of the model, zero where a token is padding.
Keep = Callable[[Any], torch.Tensor | Sequence[torch.Tensor]]


# Input and output of layers, by name.
Seen = dict[str, tuple[torch.Tensor, torch.Tensor]]


class _Stop(Exception):
    """Everything that was wanted from a block has been seen."""


@dataclass
class ModelCall:
    """One run through all blocks.

    Attributes:
        hidden: states that enter the next block to be replayed.
        rest: per block, the arguments beside the hidden states.
        keep: bool [N] per token of the flattened batch, None if all count.
    """

    hidden: torch.Tensor
    rest: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    keep: torch.Tensor | None = None

    def run(self, block: nn.Module, number: int) -> torch.Tensor:
        """The hidden states after `block`, the block of that number."""
        args, kwargs = self.rest[number]
        result = block(self.hidden, *args, **kwargs)
        after: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return after

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rows [N, *] of the tokens that count."""
        flat = tensor.flatten(0, -2)
        return flat if self.keep is None else flat[self.keep]


def record_calls(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    batches: Iterable[Any],
    loss: Loss,
    keep: Keep | None = None,
) -> list[ModelCall]:
    """Record how each block is called on every batch; the blocks themselves are skipped."""
    calls: list[ModelCall] = []

    def record(is_first: bool, *args: Any, **kwargs: Any) -> torch.Tensor:
        # A cache would get every replayed token a second time.
        rest: list[Any] = [None if hasattr(value, "get_seq_length") else value for value in args]
        named: dict[str, Any]
        named = {k: None if hasattr(v, "get_seq_length") else v for k, v in kwargs.items()}
        hidden: torch.Tensor = rest.pop(0) if rest else named.pop("hidden_states")
        if is_first:
            calls.append(ModelCall(hidden.detach()))
        calls[-1].rest.append((tuple(rest), named))
        return hidden

    try:
        for block in blocks:
            # On the instance: found before the method of the class.
            block.forward = partial(record, block is blocks[0])
        with torch.no_grad():
            for batch in batches:
                first = len(calls)
                loss(model, batch)
                if keep is not None:
                    _attach_keep(calls[first:], keep(batch))
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)
    for call in calls:
        if len(call.rest) != len(blocks):
            raise InputError(
                f"a batch ran {len(call.rest)} of {len(blocks)} blocks; blocks must run in the"
                " order of the model, each once (no layer drop, no gradient checkpointing)."
            )
    return calls


def watch(
    call: ModelCall, block: nn.Module, number: int, wanted: dict[str, nn.Module], stop_at: str = ""
) -> tuple[Seen, torch.Tensor | None]:
    """Input and output of some layers while a block runs, and what the block returns.

    Args:
        call: what to replay.
        block: the block to run.
        number: its number.
        wanted: layers by a name of the caller's choice.
        stop_at: leave the block once this layer was seen; the result is then None.
    """
    seen: Seen = {}

    def look(name: str) -> Callable[[nn.Module, tuple[Any, ...], torch.Tensor], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
            seen[name] = (args[0], output)
            if name == stop_at:
                raise _Stop

        return hook

    result = None
    handles = [layer.register_forward_hook(look(name)) for name, layer in wanted.items()]
    with hooked(handles), suppress(_Stop):
        result = call.run(block, number)
    return seen, result


def _attach_keep(calls: list[ModelCall], keep: torch.Tensor | Sequence[torch.Tensor]) -> None:
    tensors = [keep] if isinstance(keep, torch.Tensor) else list(keep)
    if len(tensors) != len(calls):
        raise InputError(
            f"keep: gave {len(tensors)} tensors for a batch in which the model is called"
            f" {len(calls)} times; one [batch, tokens] per call is due."
        )
    for call, tensor in zip(calls, tensors, strict=True):
        if tensor.shape != call.hidden.shape[:-1]:
            raise InputError(
                f"keep: shape {list(tensor.shape)}, but the model runs"
                f" {list(call.hidden.shape[:-1])} tokens."
            )
        call.keep = tensor.reshape(-1).to(call.hidden.device) != 0
