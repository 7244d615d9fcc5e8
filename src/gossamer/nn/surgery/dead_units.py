# SPDX-License-Identifier: Apache-2.0
"""Heads and filters that nothing reads are cut out of a transformer, masks and optimizer included.

`cut_dead_units` finds them: the columns that read them are all zero. `cut_to_counts` cuts a model
of full size to the sizes of another, whose weights follow.
"""

from collections.abc import Sequence

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.layer_weights import weight_of
from gossamer.nn.surgery.full_masks import drop_full_mask, drop_full_masks
from gossamer.nn.surgery.matrix_layers import stores_transposed
from gossamer.nn.surgery.optimizer_state import Convert, convert_state, swap_parameter
from gossamer.nn.surgery.slimming import UnitGroup, cut_units, find_groups, unit_counts
from gossamer.nn.surgery.unchanged import unchanged_on_error

__all__ = ["cut_dead_units", "cut_to_counts"]

Optimizer = torch.optim.Optimizer | None


def cut_dead_units(model: nn.Module, optimizer: Optimizer = None) -> list[tuple[int, int]]:
    """Take out all heads and filters that nothing reads; (heads, filters) of every block then.

    One of each stays in every block. The model is changed in place, an error leaves it as it was.

    Raises:
        TargetError: a mask has other zeros than those of whole heads and filters; they would be
            weights of a dense layer again.
    """
    with unchanged_on_error(model, optimizer, contents=()):
        kept = [_living(group) for group in find_groups(model)]
        for group, units in zip(find_groups(model), kept, strict=True):
            _cut(model, group, units, optimizer)
        drop_full_masks(model, optimizer)
    return unit_counts(model)


def cut_to_counts(
    model: nn.Module, counts: Sequence[Sequence[int]], optimizer: Optimizer = None
) -> None:
    """Cut every block to (heads, filters); which ones stay does not matter."""
    wanted = [count for block in counts for count in block]
    for group, count in zip(find_groups(model), wanted, strict=True):
        _cut(model, group, list(range(count)), optimizer)
    drop_full_masks(model, optimizer)


def _living(group: UnitGroup) -> list[int]:
    weight = weight_of(group.consumer)
    columns = (weight.t() if stores_transposed(group.consumer) else weight).ne(0).any(0)
    units = columns.view(group.count, group.width).any(1) if group.count else columns
    return units.nonzero().flatten().tolist() or list(range(min(group.count, 1)))


def _cut(model: nn.Module, group: UnitGroup, kept: list[int], optimizer: Optimizer) -> None:
    units = torch.tensor(kept, dtype=torch.long)
    columns = group.columns(units)
    places: dict[str, tuple[torch.Tensor | None, torch.Tensor | None]] = {
        name: (group.rows(layer, units), None) for name, layer in _producers(group)
    }
    places[group.consumer_name] = (None, columns)
    for name in places:
        _unmask(model, f"{group.block_name}.{name}", places[name], optimizer)
    if len(kept) == group.count:
        return
    before = {name: dict(_layer(group, name)._parameters) for name in places}
    cut_units(group, kept)
    for name, (rows, read) in places.items():
        layer = _layer(group, name)
        for parameter, old in before[name].items():
            new = layer._parameters[parameter]
            if optimizer is None or old is None or new is None or old is new:
                continue
            take = _taking(rows, read, stores_transposed(layer) and old.ndim > 1)
            swap_parameter(optimizer, old, new, convert_state(optimizer, old, take))


def _producers(group: UnitGroup) -> list[tuple[str, nn.Module]]:
    return list(zip(group.producer_names, group.producers, strict=True))


def _layer(group: UnitGroup, name: str) -> nn.Module:
    return group.block.get_submodule(name)


def _taking(
    rows: torch.Tensor | None, columns: torch.Tensor | None, is_transposed: bool
) -> Convert:
    def take(tensor: torch.Tensor) -> torch.Tensor:
        found = tensor.t() if is_transposed else tensor
        found = found if rows is None else found[rows.to(tensor.device)]
        found = found if columns is None else found[:, columns.to(tensor.device)]
        return (found.t() if is_transposed else found).contiguous()

    return take


def _unmask(
    model: nn.Module,
    name: str,
    places: tuple[torch.Tensor | None, torch.Tensor | None],
    optimizer: Optimizer,
) -> None:
    """An ordinary layer instead of a masked one, if what stays of it is not masked."""
    layer = model.get_submodule(name)
    if form_of(layer) != "masked":
        return
    masked: torch.Tensor = layer.mask()  # type: ignore[operator]
    rows, columns = places
    mask = masked if rows is None else masked[rows]
    mask = mask if columns is None else mask[:, columns]
    if not mask.all():
        raise TargetError(
            f"{name}: its mask has zeros beside those of whole heads and filters, and a dense layer"
            " would have them as weights. Prune whole units only, or compact instead."
        )
    drop_full_mask(model, layer, optimizer)
