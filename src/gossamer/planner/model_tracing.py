# SPDX-License-Identifier: Apache-2.0
"""The shape of a torch module: one forward pass on tensors without data.

Operations are counted by torch's own counter, and what autograd keeps is counted storage by
storage, so that a plan needs no formula for a model and no memory for its weights.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from gossamer.errors import InputError
from gossamer.planner.model_shape import ModelShape, Unit
from gossamer.pruning.targets import find_targets

_NUMBER = 4
_FEW_BLOCKS = 2


@dataclass
class _Count:
    """What was seen between two cuts."""

    name: str
    is_block: bool
    flops: float = 0.0
    flops_prunable: float = 0.0
    saved: float = 0.0
    output: float = 0.0


def trace_shape(
    model: nn.Module,
    example: Sequence[int],
    *,
    name: str,
    tokens: int,
    ids: bool,
    targets: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> ModelShape:
    """The shape of a model on the meta device, or with weights, which are not read.

    Args:
        model: any module; blocks are the longest list of equal children it has.
        example: size of one sample, without the batch.
        name: for people.
        tokens: of one sample.
        ids: whether a sample is token ids rather than numbers.
        targets: layers that are pruned; default: as `gossamer.sparsify`.
        ignore: layers that are not.
    """
    prunable = {
        id(target.module): target.weight.numel() for target in find_targets(model, targets, ignore)
    }
    blocks = find_blocks(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():
        fake = _without_data(model, mode)
        counts = _Trace(fake, blocks, prunable, model).run(example, ids)
    units = tuple(_units(counts, prunable, model, tokens))
    return ModelShape(name, units, tokens, max(1, len(blocks)))


def find_blocks(model: nn.Module) -> list[str]:
    """Names of the layers that are cut between: the longest list of equal children."""
    lists = [
        [f"{name}.{index}".lstrip(".") for index in range(len(module))]
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) >= _FEW_BLOCKS
        if len({type(child) for child in module if any(True for _ in child.parameters())}) == 1
    ]
    return max(lists, key=len, default=[])


def _without_data(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy of the module whose parameters and buffers have sizes only."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        made: torch.Tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.is_floating_point())
        memo[id(tensor)] = made
    return deepcopy(model, memo).train()


class _Trace:
    """One forward pass, cut at the blocks."""

    def __init__(
        self, fake: nn.Module, blocks: list[str], prunable: dict[int, int], model: nn.Module
    ) -> None:
        self.fake = fake
        self.blocks = {id(fake.get_submodule(name)): name for name in blocks}
        cpu_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        self.counter = FlopCounterMode(
            display=False, custom_mapping={cpu_attention: _attention_flops}
        )
        self.counts = [_Count("before", is_block=False)]
        self.products = {
            id(copied): prunable[id(module)]
            for module, copied in zip(model.modules(), fake.modules(), strict=True)
            if id(module) in prunable
        }
        held = (*fake.parameters(), *fake.buffers())
        self.seen = {tensor.untyped_storage()._cdata for tensor in held}
        self.alive: list[torch.Tensor] = []
        self.flops = 0.0

    def run(self, example: Sequence[int], ids: bool) -> list[_Count]:
        for module in self.fake.modules():
            # Before a block is left: a block may itself be a product.
            if id(module) in self.products:
                module.register_forward_hook(self._product)
            if id(module) in self.blocks:
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(self._leave)
        sample = torch.zeros((1, *example), dtype=torch.long if ids else torch.float32)
        kept = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        with self.counter, kept:
            output = self.fake(sample)
            output = getattr(output, "logits", output)
            if not isinstance(output, torch.Tensor):
                got = type(output).__name__
                raise InputError(f"model: expected a tensor or .logits from forward, got {got}.")
            rows = output.flatten(0, -2)
            nn.functional.cross_entropy(rows, torch.zeros(rows.shape[0], dtype=torch.long))
        self._close(output)
        return self.counts

    def _close(self, output: Any) -> None:
        """End the open part: its operations, and what it hands on."""
        total = float(self.counter.get_total_flops())
        open_part = self.counts[-1]
        open_part.flops, self.flops = open_part.flops + total - self.flops, total
        tensor = output[0] if isinstance(output, tuple) else output
        open_part.output = float(tensor.numel())

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and not self.counts[-1].is_block:
            self._close(args[0])
        self.counts.append(_Count(self.blocks[id(module)], is_block=True))

    def _leave(self, module: nn.Module, _: Any, output: Any) -> None:
        self._close(output)
        self.counts.append(_Count("after", is_block=False))

    def _product(self, module: nn.Module, _: Any, output: torch.Tensor) -> None:
        places = output.numel() / module.get_parameter("weight").shape[0]
        self.counts[-1].flops_prunable += 2.0 * places * self.products[id(module)]

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that backward needs; the same storage counts once, and lives on."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.counts[-1].saved += storage.nbytes() / _NUMBER
            self.alive.append(tensor)
        return tensor


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    batch, heads, rows, features = query
    return int(2 * batch * heads * rows * key[-2] * (features + value[-1]))


def _units(
    counts: list[_Count], prunable: dict[int, int], model: nn.Module, tokens: int
) -> Iterator[Unit]:
    """Costs per token; parts between two blocks belong to the one before."""
    parts = [counts[0]]
    for count in counts[1:]:
        if count.is_block or count is counts[-1]:
            parts.append(count)
        else:
            parts[-1].flops += count.flops
            parts[-1].saved += count.saved
    owners = {part.name: model.get_submodule(part.name) for part in parts if part.is_block}
    placed = {id(p) for module in owners.values() for p in module.parameters()}
    for part in parts:
        masked, largest, everything, tied = _weights_in(
            owners.get(part.name), model, prunable, placed, last=part is parts[-1]
        )
        yield Unit(
            name=part.name,
            prunable=masked,
            rest=everything - masked,
            flops_prunable=part.flops_prunable / tokens,
            flops_rest=max(0.0, part.flops - part.flops_prunable) / tokens,
            saved=part.saved / tokens,
            output=part.output / tokens,
            largest=largest,
            is_block=part.is_block,
            tied=tied,
        )


def _weights_in(
    module: nn.Module | None,
    model: nn.Module,
    prunable: dict[int, int],
    placed: set[int],
    *,
    last: bool,
) -> tuple[int, int, int, int]:
    """Prunable entries, those of the largest weight, all parameters of a part, and tied ones.

    What lies outside of blocks belongs to the first part if it is an embedding, else to the last.
    """
    if module is not None:
        chosen = list(module.modules())
    else:
        chosen = [
            child
            for child in model.modules()
            if any(id(p) not in placed for p in child.parameters(recurse=False))
            if isinstance(child, nn.Embedding) != last
        ]
    held = {id(p): p.numel() for child in chosen for p in child.parameters(recurse=False)}
    tied = 0
    if last and module is None:
        # A tied head holds nothing of its own.
        embeddings = [child for child in model.modules() if isinstance(child, nn.Embedding)]
        tied = sum(held.pop(id(child.weight), 0) for child in embeddings)
    sizes = [prunable[id(child)] for child in chosen if id(child) in prunable]
    return sum(sizes), max(sizes, default=0), sum(held.values()), tied
