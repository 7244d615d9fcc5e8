# SPDX-License-Identifier: Apache-2.0
"""Feed-forward blocks with ReLUs, run on their active neurons where that measures faster.

What it brings depends on the activations, so a block is measured on inputs the model really gives
it, every call another one: repeating one input would find its few rows in the cache.

Legend: T tokens, D features.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.layer_kinds import kind_name
from gossamer.nn.layer_weights import weight_of
from gossamer.nn.relufication import ShiftedReLU
from gossamer.nn.relufication.states import relu_cut
from gossamer.nn.surgery import replace_module
from gossamer.nn.surgery.carried import carried, carried_by_calls
from gossamer.ops.addresses import direct_address
from gossamer.ops.engines import PackedNeurons
from gossamer.ops.timing import duel
from gossamer.running.layers.neuron_memory import NeuronMemory

__all__ = ["ActiveNeurons", "NeuronChoice", "pack_block", "reused_neurons", "use_active_neurons"]

# It must win by this much: within it, the choice would be noise.
_MARGIN = 1.05
_MAX_INPUTS = 64
_GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")


@dataclass(frozen=True)
class NeuronChoice:
    """What runs one block for few tokens.

    Attributes:
        name: of the block.
        zeros: fraction of neurons that were zero in the inputs measured.
        dense_us: of one token through the stock block.
        active_us: of one token through its active neurons.
        active: whether the latter run now.
    """

    name: str
    zeros: float
    dense_us: float
    active_us: float
    active: bool


class ActiveNeurons(nn.Module):
    """A feed-forward block that reads active neurons only, for up to `max_tokens` tokens.

    Attributes:
        stock: the block whose place it takes; runs more tokens.
        packed: its neurons.
    """

    def __init__(self, stock: nn.Module, packed: PackedNeurons, max_tokens: int) -> None:
        super().__init__()
        self.stock = stock
        self.packed = packed
        self.max_tokens = max_tokens
        self._bias = _layers(stock)[2].bias
        self.memory: NeuronMemory | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output for x [..., D]."""
        # Tracers and transforms see what it is made of.
        is_direct = not torch.compiler.is_compiling() and direct_address(x)
        if not is_direct or x.numel() > self.max_tokens * self.packed.num_features:
            output: torch.Tensor = self.stock(x)
            return output
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "active neurons are for inference and give no gradients. Call the model under"
                " torch.inference_mode()."
            )
        y = self.packed(x)[0] if self.memory is None else self.memory.run(self.packed, x)
        return y if self._bias is None else y + self._bias


def use_active_neurons(
    model: nn.Module, run: Callable[[nn.Module], object], *, max_tokens: int = 4, rows: str = "fp32"
) -> list[NeuronChoice]:
    """Let blocks with ReLUs run on their active neurons, in place, where that is faster.

    Blocks are the `mlp` modules of Llama and its like and `nn.Sequential(Linear, ReLU, Linear)`
    with `nn.ReLU` or the `ShiftedReLU` of relufication.

    Args:
        model: for inference; float32 on the CPU.
        run: calls the model on typical data; the inputs of its blocks are recorded.
        max_tokens: of a call; more run through the stock block. The active neurons of several
            tokens are different ones.
        rows: what the rows of active neurons are stored in: "fp32", "bf16" or "int8".
    """
    blocks = {name: module for name, module in model.named_modules() if _is_block(module)}
    if not blocks:
        raise TargetError(
            f"active neurons: {type(model).__name__} has no feed-forward block with ReLU. Relufy it"
            " first (gossamer.nn.relufication.relufy) and train it on."
        )
    for name, block in blocks.items():
        for part, module in block.named_modules(prefix=name):
            reason = carried(module) if kind_name(module) else carried_by_calls(module)
            if reason is not None:
                raise TargetError(f"active neurons: {part} would not be called any more: {reason}.")
    inputs = _record(model, blocks, run)
    return [
        _choose(model, name, block, inputs[name], max_tokens, rows)
        for name, block in blocks.items()
    ]


@contextlib.contextmanager
def reused_neurons(model: nn.Module, window: int, reuse: int) -> Iterator[None]:
    """In turns, active neurons of `window` tokens are all that the next `reuse` tokens read.

    Of the latter a neuron that none of the former had is zero, whatever it would have been: an
    approximation, whose price is to be measured. For one sequence, token by token.

    Args:
        model: with blocks that run on active neurons.
        window: tokens that are computed as always, and whose active neurons are put together.
        reuse: tokens that read those only.
    """
    for name, count in {"window": window, "reuse": reuse}.items():
        if count < 1:
            raise InputError(f"reused neurons: {name} must be 1 or more, got {count}.")
    blocks = [module for module in model.modules() if isinstance(module, ActiveNeurons)]
    if not blocks:
        raise TargetError(
            "reused neurons: no block runs on its active neurons: call use_active_neurons first."
        )
    for block in blocks:
        block.memory = NeuronMemory(block.packed.num_neurons, window, reuse)
    try:
        yield
    finally:
        for block in blocks:
            block.memory = None


def _layers(block: nn.Module) -> tuple[Any, Any, Any, Any]:
    """Gate, up (None in a plain block), down and activation."""
    if isinstance(block, nn.Sequential):
        return block[0], None, block[2], block[1]
    return attrgetter(*_GATED)(block)


def _is_block(module: nn.Module) -> bool:
    is_gated = all(hasattr(module, name) for name in _GATED)
    if not is_gated and (type(module) is not nn.Sequential or len(module) != 3):
        return False
    gate, up, down, activation = _layers(module)
    return (
        isinstance(activation, nn.ReLU | ShiftedReLU)
        and all(kind_name(layer) == "linear" for layer in (gate, down, up or gate))
        and gate.in_features == down.out_features
    )


def _record(
    model: nn.Module, blocks: dict[str, nn.Module], run: Callable[[nn.Module], object]
) -> dict[str, torch.Tensor]:
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in blocks}
    with contextlib.ExitStack() as hooks, torch.inference_mode():
        for name, block in blocks.items():
            hook = block.register_forward_pre_hook(
                lambda _, given, name=name: seen[name].append(given[0].detach().flatten(0, -2))
            )
            hooks.enter_context(hook)
        run(model)
    empty = [name for name, rows in seen.items() if not rows]
    if empty:
        raise InputError(f"active neurons: running the model did not reach {empty[0]}.")
    return {name: torch.cat(rows)[:_MAX_INPUTS] for name, rows in seen.items()}


def pack_block(block: nn.Module, *, rows: str = "fp32") -> PackedNeurons:
    """The neurons of a block."""
    gate, up, down, activation = _layers(block)
    return PackedNeurons(
        weight_of(gate),
        None if up is None else weight_of(up),
        weight_of(down).T.contiguous(),
        gate_bias_N=gate.bias,
        up_bias_N=None if up is None else up.bias,
        cut=relu_cut(activation),
        rows=rows,
    )


def _choose(
    model: nn.Module,
    name: str,
    block: nn.Module,
    inputs_TD: torch.Tensor,
    max_tokens: int,
    rows: str,
) -> NeuronChoice:
    packed = pack_block(block, rows=rows)
    with torch.inference_mode():
        _, active = packed(inputs_TD)
        turns = [itertools.cycle(torch.split(inputs_TD, 1)) for _ in range(2)]
        times = duel(lambda: block(next(turns[0])), lambda: packed(next(turns[1])))
    wins = times.ratio >= _MARGIN
    if wins:
        replace_module(model, block, ActiveNeurons(block, packed, max_tokens))
    zeros = 1 - active / max(len(inputs_TD) * packed.num_neurons, 1)
    return NeuronChoice(name, zeros, times.first_us, times.second_us, wins)
