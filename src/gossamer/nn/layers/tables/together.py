# SPDX-License-Identifier: Apache-2.0
"""Packed tables of one model that are looked up together, each with one id of a sample."""

from collections.abc import Iterable

import torch
from torch import nn

from gossamer.nn.layers.tables.packed import PackedTable
from gossamer.ops.addresses import is_watched
from gossamer.ops.table.pairs import TablePairs

__all__ = ["PackedTogether"]


class PackedTogether:
    """Keeps the packed tables of a model ready for one native call, as long as they stay the same.

    It belongs to no state and to no copy of a model: it is made anew where it is needed.
    """

    def __init__(self) -> None:
        self._layers: tuple[nn.Module, ...] = ()
        self._seen: list[tuple[torch.Tensor | None, int]] = []
        self._pairs: TablePairs | None = None

    def __deepcopy__(self, memo: object) -> "PackedTogether":
        return PackedTogether()

    def __reduce__(self) -> tuple[type["PackedTogether"], tuple[()]]:
        return PackedTogether, ()

    def pairs(
        self, tables: Iterable[nn.Module], ids_BC: torch.Tensor, first_BD: torch.Tensor | None
    ) -> torch.Tensor | None:
        """What `TablePairs` gives; None where tables are to be called one by one.

        That is where one of them is not packed or has hooks, and where gradients or somebody who
        records are to see the calls.
        """
        if is_watched() or torch.compiler.is_compiling():
            return None
        if first_BD is not None and first_BD.requires_grad and torch.is_grad_enabled():
            return None
        layers = tuple(tables)
        if layers != self._layers or not self._is_current():
            self._prepare(layers)
        pairs = self._pairs
        if pairs is None or any(t._forward_hooks or t._forward_pre_hooks for t in layers):
            return None
        return pairs(ids_BC, first_BD) if pairs.takes(ids_BC, first_BD) else None

    def _is_current(self) -> bool:
        seen = iter(self._seen)
        for layer in self._layers:
            buffers = layer._buffers
            for name in PackedTable.TENSORS:
                tensor, version = next(seen)
                if buffers[name] is not tensor or (
                    tensor is not None and tensor._version != version
                ):
                    return False
        return True

    def _prepare(self, layers: tuple[nn.Module, ...]) -> None:
        """Take packed tables of one width; of others nothing is kept."""
        self._layers, self._seen, self._pairs = (), [], None
        packed = [layer for layer in layers if isinstance(layer, PackedTable)]
        held = [layer._buffers[name] for layer in packed for name in PackedTable.TENSORS]
        if (
            not packed
            or len(packed) != len(layers)
            or len({layer.embedding_dim for layer in packed}) > 1
            or any(tensor is not None and tensor.is_inference() for tensor in held)
            or not all(layer.rows().is_native() for layer in packed)
        ):
            return
        paddings = [
            -1 if layer.mode is None or layer.padding_idx is None else layer.padding_idx
            for layer in packed
        ]
        self._pairs = TablePairs([layer.rows() for layer in packed], paddings)
        self._layers = layers
        self._seen = [(t, 0 if t is None else t._version) for t in held]
