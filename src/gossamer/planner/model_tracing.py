# SPDX-License-Identifier: Apache-2.0
"""The shape of a torch module: one forward pass on tensors without data.

Operations are counted by torch's own counter, and what autograd keeps is counted storage by
storage, so that a plan needs no formula for a model and no memory for its weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from gossamer.errors import InputError
from gossamer.planner.model_shape import ModelShape, Unit
from gossamer.planner.table_step import TableShape
from gossamer.pruning.targets import find_targets
from gossamer.training.distributed.tables import sparse_tables

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
    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        fake = _without_data(model)
        products = {
            id(copied): prunable[id(module)]
            for module, copied in zip(model.modules(), fake.modules(), strict=True)
            if id(module) in prunable
        }
        counts = _trace(
            fake, {id(fake.get_submodule(block)): block for block in blocks}, products, example, ids
        )
    tables = tuple(TableShape(*table.shape) for table in sparse_tables(model).values())
    units = tuple(_units(counts, prunable, model, tokens))
    return ModelShape(name, units, tokens, max(1, len(blocks)), tables)


def find_blocks(model: nn.Module) -> list[str]:
    """Names of the layers that are cut between: the longest list of equal children."""
    lists = [
        [f"{name}.{index}".lstrip(".") for index in range(len(module))]
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) >= _FEW_BLOCKS
        if len({type(child) for child in module if any(True for _ in child.parameters())}) == 1
    ]
    return max(lists, key=len, default=[])


def _without_data(model: nn.Module) -> nn.Module:
    """A copy of the module whose parameters and buffers have sizes only."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        made: torch.Tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.is_floating_point())
        memo[id(tensor)] = made
    return deepcopy(model, memo).train()


def _trace(
    fake: nn.Module,
    blocks: Mapping[int, str],
    products: Mapping[int, int],
    example: Sequence[int],
    ids: bool,
) -> list[_Count]:
    """One forward pass, cut at the blocks.

    Args:
        fake: a module whose tensors have sizes only; it is left with hooks.
        blocks: names by id of the module.
        products: prunable entries by id of the module.
        example: size of one sample.
        ids: whether it is token ids.
    """
    cpu_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={cpu_attention: _attention_flops})
    counts = [_Count("before", is_block=False)]
    seen = {tensor.untyped_storage()._cdata for tensor in (*fake.parameters(), *fake.buffers())}
    alive: list[torch.Tensor] = []

    def close(output: Any) -> None:
        """End the open part: its operations, and what it hands on."""
        before = sum(count.flops for count in counts)
        counts[-1].flops += float(counter.get_total_flops()) - before
        tensor = output[0] if isinstance(output, tuple) else output
        counts[-1].output = float(tensor.numel())

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and not counts[-1].is_block:
            close(args[0])
        counts.append(_Count(blocks[id(module)], is_block=True))

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        close(output)
        counts.append(_Count("after", is_block=False))

    def multiply(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        places = output.numel() / module.get_parameter("weight").shape[0]
        counts[-1].flops_prunable += 2.0 * places * products[id(module)]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that backward needs; the same storage counts once, and lives on."""
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            counts[-1].saved += storage.nbytes() / _NUMBER
            alive.append(tensor)
        return tensor

    for module in fake.modules():
        # Before a block is left: a block may itself be a product.
        if id(module) in products:
            module.register_forward_hook(multiply)
        if id(module) in blocks:
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    sample = torch.zeros((1, *example), dtype=torch.long if ids else torch.float32)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = fake(sample)
        output = getattr(output, "logits", output)
        if not isinstance(output, torch.Tensor):
            got = type(output).__name__
            raise InputError(f"model: expected a tensor or .logits from forward, got {got}.")
        rows = output.flatten(0, -2)
        nn.functional.cross_entropy(rows, torch.zeros(rows.shape[0], dtype=torch.long))
    close(output)
    return counts


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
    embeddings = [child for child in model.modules() if isinstance(child, nn.Embedding)]
    for part in parts:
        last, tied = part is parts[-1], 0
        if part.is_block:
            chosen = list(owners[part.name].modules())
        else:
            # What lies outside of blocks belongs to the first part if it is an embedding, else to
            # the last.
            chosen = [
                child
                for child in model.modules()
                if any(id(p) not in placed for p in child.parameters(recurse=False))
                if (child in embeddings) != last
            ]
        held = {id(p): p.numel() for child in chosen for p in child.parameters(recurse=False)}
        if last and not part.is_block:
            # A tied head holds nothing of its own.
            tied = sum(held.pop(id(child.weight), 0) for child in embeddings)
        sizes = [prunable[id(child)] for child in chosen if id(child) in prunable]
        yield Unit(
            name=part.name,
            prunable=sum(sizes),
            rest=sum(held.values()) - sum(sizes),
            flops_prunable=part.flops_prunable / tokens,
            flops_rest=max(0.0, part.flops - part.flops_prunable) / tokens,
            saved=part.saved / tokens,
            output=part.output / tokens,
            largest=max(sizes, default=0),
            is_block=part.is_block,
            tied=tied,
        )
