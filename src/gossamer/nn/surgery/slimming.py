# SPDX-License-Identifier: Apache-2.0
"""Units of transformer blocks cut out for good: the model gets smaller, and stays ordinary.

`find_groups` finds a block's heads and filters, each `UnitGroup` with the rows and columns they
own; `cut_units` removes some, and `unit_counts` says how many every block has left. Layers are seen
as matrices by `nn/surgery/matrix_layers`.

A unit owns rows of the layers before it and columns of the layer after it, the consumer. For
grouped-query attention one unit is a key/value head with all its query heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.families import BlockParts, block_of
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.surgery import inherit_hooks
from gossamer.nn.surgery.matrix_layers import BiasOnly, is_matrix_layer, matrix_of, set_matrix

__all__ = ["UnitGroup", "cut_units", "find_groups", "unit_counts"]

Kind = Literal["heads", "filters"]


@dataclass(frozen=True)
class UnitGroup:
    """All units of one kind in one block.

    Attributes:
        block_name: dotted name of the block.
        block: the block.
        family: where its parts are.
        kind: heads or filters.
        count: units there are now.
        width: columns of the consumer per unit.
        consumer_name: dotted name of the layer whose input the units scale.
        producer_names: dotted names of the layers whose rows the units own.
        segments: how many equal parts of a producer each hold rows of every unit.
    """

    block_name: str
    block: nn.Module
    family: BlockParts
    kind: Kind
    count: int
    width: int
    consumer_name: str
    producer_names: tuple[str, ...]
    segments: int

    @property
    def name(self) -> str:
        """Block and kind, for messages and reports."""
        return f"{self.block_name}.{self.kind}"

    @property
    def consumer(self) -> nn.Module:
        """The layer whose input the units scale."""
        return self.block.get_submodule(self.consumer_name)

    @property
    def producers(self) -> list[nn.Module]:
        """The layers whose rows the units own; none where no head is left."""
        return [self.block.get_submodule(name) for name in self.producer_names]

    def columns(self, units: torch.Tensor) -> torch.Tensor:
        """Columns of the consumer that belong to `units`."""
        return (units[:, None] * self.width + torch.arange(self.width)).flatten()

    def rows(self, producer: nn.Module, units: torch.Tensor) -> torch.Tensor:
        """Rows of a producer that belong to `units`, segment after segment."""
        total = matrix_of(producer).shape[0]
        per_unit = total // (self.segments * self.count)
        within = (units[:, None] * per_unit + torch.arange(per_unit)).flatten()
        starts = torch.arange(self.segments)[:, None] * (total // self.segments)
        return (starts + within).flatten()


class NoAttention(nn.Module):
    """Takes the place of an attention module whose last head was removed.

    What is left of it is the bias of its output projection. A key/value cache still gets an
    entry per token, because models read their position from it.
    """

    def __init__(self, output_name: str | None, output: nn.Module | None, layer: int) -> None:
        super().__init__()
        self.output_name = output_name
        self.layer_idx = layer
        if output_name is not None:
            self.add_module(output_name, output)

    def forward(
        self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """The bias at every position, and no attention weights."""
        cache = kwargs.get("past_key_values")
        if cache is not None:
            batch, tokens, _ = hidden_states.shape
            nothing = hidden_states.new_zeros(batch, 1, tokens, 1)
            getattr(cache, "self_attention_cache", cache).update(nothing, nothing, self.layer_idx)
        if self.output_name is None:
            # The output projection behind it reads the shape only.
            return hidden_states, None
        return self.get_submodule(self.output_name)(hidden_states), None


def find_groups(model: nn.Module) -> list[UnitGroup]:
    """Heads and filters of every block that can be cut, in the order of the model."""
    groups = []
    for name, module in model.named_modules():
        family = block_of(module)
        if family is not None and not family.whole:
            groups += [_heads(name, module, family), _filters(name, module, family)]
    return groups


def unit_counts(model: nn.Module) -> list[tuple[int, int]]:
    """(heads, filters) of every block."""
    counts = [group.count for group in find_groups(model)]
    return list(zip(counts[::2], counts[1::2], strict=True))


def cut_units(group: UnitGroup, kept: Sequence[int]) -> None:
    """Remove all units of a group but `kept` (ascending); the model is changed in place."""
    if len(kept) == group.count:
        return
    if sorted(set(kept)) != list(kept) or (kept and not 0 <= kept[0] <= kept[-1] < group.count):
        raise TargetError(
            f"{group.name}: kept units must be ascending numbers below {group.count}, got"
            f" {list(kept)[:8]}."
        )
    for part in (*group.producer_names, group.consumer_name):
        if not is_matrix_layer(group.block.get_submodule(part)):
            raise _not_a_matrix(group.block_name, group.block, part)
    units = torch.tensor(list(kept), dtype=torch.long)
    for producer in group.producers:
        take_rows(producer, group.rows(producer, units))
    take_columns(group.consumer, group.columns(units))
    if not len(kept):
        _put(group.block, group.consumer_name, BiasOnly.of(group.consumer))
    if group.kind == "heads":
        _fix_attention(group, len(kept))


def _fix_attention(group: UnitGroup, units: int) -> None:
    family, block = group.family, group.block
    if not units and family.attention:
        inside = family.output.startswith(family.attention + ".")
        name = family.output[len(family.attention) + 1 :] if inside else None
        old = block.get_submodule(family.attention)
        layer = getattr(old, "layer_idx", None)
        empty = NoAttention(name, group.consumer if inside else None, layer or 0)
        inherit_hooks(empty, old)
        _put(block, family.attention, empty)
        return
    width = units * group.width
    head_dim = int(attrgetter(family.head_dim)(block))
    for attribute in family.head_counts:
        _put(block, attribute, width // head_dim)
    for attribute in family.head_widths:
        _put(block, attribute, width)


def _heads(name: str, block: nn.Module, family: BlockParts) -> UnitGroup:
    gone = bool(family.attention) and isinstance(block.get_submodule(family.attention), NoAttention)
    count = width = 0
    if not gone:
        head_dim = int(attrgetter(family.head_dim)(block))
        count = _matrix_shape(name, block, family.key)[0] // family.segments // head_dim
        width = _matrix_shape(name, block, family.output)[1] // count if count else head_dim
    return UnitGroup(
        name, block, family, "heads", count, width, family.output,
        () if gone else family.projections, family.segments,
    )  # fmt: skip


def _filters(name: str, block: nn.Module, family: BlockParts) -> UnitGroup:
    count = _matrix_shape(name, block, family.down)[1]
    return UnitGroup(name, block, family, "filters", count, 1, family.down, family.expansions, 1)


def _matrix_shape(name: str, block: nn.Module, part: str) -> torch.Size:
    layer = block.get_submodule(part)
    if not is_matrix_layer(layer) and form_of(layer) != "masked":
        raise _not_a_matrix(name, block, part)
    return matrix_of(layer).shape


def _not_a_matrix(name: str, block: nn.Module, part: str) -> TargetError:
    return TargetError(
        f"{name}.{part}: is a {type(block.get_submodule(part)).__name__}; units can be cut out of"
        " torch.nn.Linear and transformers' Conv1D only. Make masked or compact layers dense first"
        " (to_dense)."
    )


def _put(block: nn.Module, dotted: str, value: nn.Module | int) -> None:
    path, _, name = dotted.rpartition(".")
    setattr(block.get_submodule(path), name, value)


def take_rows(layer: nn.Module, rows: torch.Tensor) -> None:
    """Keep these output rows, and their biases, only."""
    matrix = matrix_of(layer)
    set_matrix(layer, matrix[rows.to(matrix.device)])
    bias = layer._parameters.get("bias")
    if bias is not None:
        kept = bias.detach()[rows.to(bias.device)].clone()
        layer.bias = nn.Parameter(kept, bias.requires_grad)


def take_columns(layer: nn.Module, columns: torch.Tensor) -> None:
    """Keep these input columns only; the bias stays whole."""
    matrix = matrix_of(layer)
    set_matrix(layer, matrix[:, columns.to(matrix.device)])
