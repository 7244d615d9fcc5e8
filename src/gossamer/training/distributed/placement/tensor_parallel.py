# SPDX-License-Identifier: Apache-2.0
"""Heads and filters of transformer blocks, shared among ranks.

Layers that produce heads or filters keep the rows of their own units (column plan: the input is
the same everywhere), the layer that consumes them keeps the matching columns (row plan: outputs are
added up). Kept values of two ranks differ in number, so they are plain local tensors; only
activations cross the network, one sum per plan and direction.

Legend: R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gossamer.errors import InputError
from gossamer.formats.bits import pack_bits, unpack_bits
from gossamer.nn import Linear, replace_module
from gossamer.nn.families import BlockParts, block_of

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


@dataclass(frozen=True)
class _Share:
    """The units of one rank: number `index` of `count` equal parts."""

    index: int
    count: int

    def of(self, total: int, width: int, segments: int, where: str) -> torch.Tensor:
        """Their places among `total` rows or columns of `segments` parts with units of `width`."""
        units = total // (segments * width)
        if units % self.count:
            raise InputError(
                f"mesh.tensor: {where} has {units} units, which {self.count} ranks cannot share"
                " equally. Use a tensor size that divides them."
            )
        each = units // self.count * width
        starts = torch.arange(segments)[:, None] * (total // segments) + self.index * each
        return (starts + torch.arange(each)).flatten()


def check_units(model: nn.Module, count: int) -> None:
    """Refuse a model whose heads and filters `count` ranks cannot share; masks may still move."""
    share = _Share(0, count)
    for name, block, family in _blocks(model):
        for part, is_rows, width, segments in _plan(block, family):
            where = f"{name}.{part}"
            rows, columns = _shape(block.get_submodule(part), where)
            total = rows if is_rows else columns
            share.of(total, width(total), segments, where)


def share_units(model: nn.Module, group: dist.ProcessGroup) -> Cuts:
    """Cut every block of a known family of `model` in place; where its new Parameters come from."""
    share = _Share(dist.get_rank(group), dist.get_world_size(group))
    cuts: Cuts = {}
    for name, block, family in _blocks(model):
        for part, is_rows, width, segments in _plan(block, family):
            where = f"{name}.{part}"
            layer = block.get_submodule(part)
            _check_final(layer, where)
            rows, columns = _shape(layer, where)
            total = rows if is_rows else columns
            places = share.of(total, width(total), segments, where)
            bias = layer._parameters["bias"]
            new: nn.Module
            if is_rows:
                new = RowsOfUnits(_cut_rows(layer, places, bias, cuts), group)
            else:
                new = ColumnsOfUnits(_cut_layer(layer, slice(None), places, cuts), bias, group)
            replace_module(block, layer, new)
        _count_heads(block, family, share.count)
    return cuts


def _blocks(model: nn.Module) -> list[tuple[str, nn.Module, BlockParts]]:
    blocks = [(name, m, f) for name, m in model.named_modules() if (f := block_of(m)) is not None]
    if not blocks:
        raise InputError(
            f"mesh.tensor: {type(model).__name__} has no transformer block of a known family whose"
            " heads and filters could be shared. Use data, shard or pipeline."
        )
    return blocks


def _plan(block: nn.Module, family: BlockParts) -> Iterator[tuple[str, bool, Any, int]]:
    """(layer, rows or columns, size of a unit for so many, segments)."""
    head_dim = int(attrgetter(family.head_dim)(block))
    heads = _shape(block.get_submodule(family.key), family.key)[0] // family.segments // head_dim

    def head(total: int) -> int:
        return total // heads

    def filters(_: int) -> int:
        return 1

    for part in family.projections:
        yield part, True, (lambda total: total // family.segments // heads), family.segments
    yield family.output, False, head, 1
    for part in family.expansions:
        yield part, True, filters, 1
    yield family.down, False, filters, 1


def _shape(layer: nn.Module, where: str) -> tuple[int, int]:
    if isinstance(layer, Linear):
        return layer.matrix_shape
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    raise InputError(
        f"mesh.tensor: {where} is a {type(layer).__name__}; ranks share Linear layers, dense or"
        " compact. Use data, shard or pipeline."
    )


def _check_final(layer: nn.Module, where: str) -> None:
    if isinstance(layer, nn.Linear) and type(layer) is not nn.Linear:
        raise InputError(
            f"mesh.tensor: {where} is a {type(layer).__name__}; ranks share dense Linear and"
            " compact layers. Set compaction to auto, so that masked layers become compact."
        )


def _cut_rows(
    layer: nn.Module, rows: torch.Tensor, bias: nn.Parameter | None, cuts: Cuts
) -> nn.Module:
    new = _cut_layer(layer, rows, slice(None), cuts)
    if bias is not None:
        new.register_parameter("bias", _remember(bias[rows], bias, lambda: rows, cuts))
    return new


def _cut_layer(
    layer: nn.Module, rows: torch.Tensor | slice, columns: torch.Tensor | slice, cuts: Cuts
) -> nn.Module:
    """The layer without bias, with some of its rows and columns."""
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
        return Linear(values, pack_bits(mask), mask.shape[1], None, mode=layer.mode).train(
            layer.training
        )
    weight: nn.Parameter = layer._parameters["weight"]  # type: ignore[assignment]
    shape = weight.shape

    def places() -> torch.Tensor:
        return torch.arange(shape.numel()).view(shape)[rows][:, columns].flatten()

    part = weight[rows][:, columns]
    new = nn.Linear(part.shape[1], part.shape[0], bias=False, device="meta")
    new.weight = _remember(part, weight, places, cuts)
    return new.train(layer.training)


def _remember(
    part: torch.Tensor, source: nn.Parameter, positions: Positions, cuts: Cuts
) -> nn.Parameter:
    new = nn.Parameter(part.detach().clone(), requires_grad=source.requires_grad)
    cuts[new] = (source, positions)
    return new


def _count_heads(block: nn.Module, family: BlockParts, ranks: int) -> None:
    for dotted in (*family.head_counts, *family.head_widths):
        path, _, name = dotted.rpartition(".")
        owner = block.get_submodule(path)
        setattr(owner, name, getattr(owner, name) // ranks)
