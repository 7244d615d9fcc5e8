# SPDX-License-Identifier: Apache-2.0
"""Heads and filters of transformer blocks, shared among ranks.

Layers that produce heads or filters keep the rows of their own units (column plan: the input is
the same everywhere), the layer that consumes them keeps the matching columns (row plan: outputs are
added up). Kept values of two ranks differ in number, so they are plain local tensors; only
activations cross the network, one sum per plan and direction.

Legend: R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.formats.bits import pack_bits, unpack_bits
from gossamer.formats.matrix import matrix_shape
from gossamer.nn import Linear
from gossamer.nn.attention import refuse_patterns
from gossamer.nn.families import BlockParts, block_of
from gossamer.nn.layer_kinds import kind_name
from gossamer.nn.layer_weights import shape_of
from gossamer.nn.surgery import replace_module

Positions = Callable[[], torch.Tensor]
# used Parameter -> (Parameter it was cut from, positions in it)
Cuts = dict[nn.Parameter, tuple[nn.Parameter, Positions]]


class _SumInBackward(torch.autograd.Function):
    """Where a replicated activation enters layers of which each rank has some rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _SumInForward(torch.autograd.Function):
    """Where each rank has the product of some columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class RowsOfUnits(nn.Module):
    """A layer with the rows of this rank's units."""

    def __init__(self, layer: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.layer, self._group = layer, group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of this rank's units."""
        shared = _SumInBackward.apply(x, self._group)  # type: ignore[no-untyped-call]
        y: torch.Tensor = self.layer(shared)
        return y


class ColumnsOfUnits(nn.Module):
    """A layer with the columns of this rank's units; the bias is added once."""

    bias: nn.Parameter | None

    def __init__(
        self, layer: nn.Module, bias: nn.Parameter | None, group: dist.ProcessGroup
    ) -> None:
        super().__init__()
        self.layer, self._group = layer, group
        self.register_parameter("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All outputs, the same on every rank."""
        part = self.layer(x)
        y: torch.Tensor = _SumInForward.apply(part, self._group)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias


def check_units(model: nn.Module, count: int) -> None:
    """Refuse a model whose heads and filters `count` ranks cannot share; masks may still move."""
    try:
        refuse_patterns(model, "ranks would take the pattern of other heads", by_head=True)
    except TargetError as error:
        raise InputError(f"mesh.tensor: {error}") from error
    for named_block in _blocks(model):
        list(_plan(*named_block, 0, count))


def share_units(model: nn.Module, group: dist.ProcessGroup) -> Cuts:
    """Cut every block of a known family of `model` in place; where its new Parameters come from."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    cuts: Cuts = {}
    for name, block, family in _blocks(model):
        for layer, where, is_rows, places in _plan(name, block, family, rank, count):
            if isinstance(layer, nn.Linear) and type(layer) is not nn.Linear:
                raise InputError(
                    f"mesh.tensor: {where} is a {type(layer).__name__}; ranks share dense Linear"
                    " and compact layers. Set compaction to auto, so that masked layers become"
                    " compact."
                )
            new: nn.Module
            if is_rows:
                new = RowsOfUnits(_cut_layer(layer, places, slice(None), cuts), group)
            else:
                part = _cut_layer(layer, slice(None), places, cuts)
                new = ColumnsOfUnits(part, layer._parameters["bias"], group)
            replace_module(block, layer, new)
        for dotted in (*family.head_counts, *family.head_widths):
            path, _, number = dotted.rpartition(".")
            owner = block.get_submodule(path)
            setattr(owner, number, getattr(owner, number) // count)
    return cuts


def _blocks(model: nn.Module) -> list[tuple[str, nn.Module, BlockParts]]:
    blocks = [(name, m, f) for name, m in model.named_modules() if (f := block_of(m)) is not None]
    if not blocks:
        raise InputError(
            f"mesh.tensor: {type(model).__name__} has no transformer block of a known family whose"
            " heads and filters could be shared. Use data, shard or pipeline."
        )
    for name, block, family in blocks:
        if family.whole:
            raise InputError(
                f"mesh.tensor: {name} is a {type(block).__name__}, which ranks cannot share:"
                f" {family.whole}. Use data, shard or pipeline."
            )
    return blocks


def _plan(
    name: str, block: nn.Module, family: BlockParts, rank: int, count: int
) -> Iterator[tuple[nn.Module, str, bool, torch.Tensor]]:
    """(layer, its name, rows or columns, those of the units of one rank of `count`)."""
    head_dim = int(attrgetter(family.head_dim)(block))
    heads = _shape(block.get_submodule(family.key), family.key)[0] // family.segments // head_dim
    # Layer, rows or columns, number of units (0: every one is a unit), segments.
    plan = [
        *((part, True, heads, family.segments) for part in family.projections),
        (family.output, False, heads, 1),
        *((part, True, 0, 1) for part in family.expansions),
        (family.down, False, 0, 1),
    ]
    for part, is_rows, number, segments in plan:
        layer, where = block.get_submodule(part), f"{name}.{part}"
        total = _shape(layer, where)[0 if is_rows else 1]
        width = total // segments // number if number else 1
        units = total // (segments * width)
        if units % count:
            raise InputError(
                f"mesh.tensor: {where} has {units} units, which {count} ranks cannot share"
                " equally. Use a tensor size that divides them."
            )
        each = units // count * width
        starts = torch.arange(segments)[:, None] * (total // segments) + rank * each
        yield layer, where, is_rows, (starts + torch.arange(each)).flatten()


def _shape(layer: nn.Module, where: str) -> tuple[int, int]:
    if kind_name(layer) == "linear":
        return matrix_shape(shape_of(layer))
    raise InputError(
        f"mesh.tensor: {where} is a {type(layer).__name__}; ranks share Linear layers, dense or"
        " compact. Use data, shard or pipeline."
    )


def _cut_layer(
    layer: nn.Module, rows: torch.Tensor | slice, columns: torch.Tensor | slice, cuts: Cuts
) -> nn.Module:
    """The layer with some of its rows and columns; it has a bias if rows are chosen."""
    new: nn.Module
    if isinstance(layer, Linear):
        # A tensor of its own: the whole model's buffer is emptied where it is not used.
        mask_bits, width = layer.mask_bits.detach(), layer.matrix_shape[1]

        def kept() -> tuple[torch.Tensor, torch.Tensor]:
            mask_RK = unpack_bits(mask_bits, width)
            order_RK = (mask_RK.flatten().cumsum(0) - 1).view_as(mask_RK)
            mine = mask_RK[rows][:, columns]
            return mine, order_RK[rows][:, columns][mine]

        mask, positions = kept()
        values = _remember(layer.values[positions], layer.values, lambda: kept()[1], cuts)
        new = Linear(values, pack_bits(mask), mask.shape[1], None, mode=layer.mode)
    else:
        weight: nn.Parameter = layer._parameters["weight"]  # type: ignore[assignment]
        shape = weight.shape

        def places() -> torch.Tensor:
            return torch.arange(shape.numel()).view(shape)[rows][:, columns].flatten()

        part = weight[rows][:, columns]
        new = nn.Linear(part.shape[1], part.shape[0], bias=False, device="meta")
        new.weight = _remember(part, weight, places, cuts)
    bias = layer._parameters["bias"]
    if isinstance(rows, torch.Tensor) and bias is not None:
        new.register_parameter("bias", _remember(bias[rows], bias, lambda: rows, cuts))
    return new.train(layer.training)


def _remember(
    part: torch.Tensor, source: nn.Parameter, positions: Positions, cuts: Cuts
) -> nn.Parameter:
    new = nn.Parameter(part.detach().clone(), requires_grad=source.requires_grad)
    cuts[new] = (source, positions)
    return new
