# SPDX-License-Identifier: Apache-2.0
"""Puts decoded tensors into a model. All checks were made before; nothing here refuses.

In a model of the user's, tensors are overwritten in place, so that optimizers keep their
Parameters. In a skeleton that was just built, and in models on the meta device, the loaded tensors
become the Parameters.
"""

import copy
from typing import Any

import torch
from torch import nn

from gossamer.formats import SparseMatrix
from gossamer.io.artifact.agreement import enclosing
from gossamer.io.artifact.decode import Decoded, SparseWeight, TiedMask
from gossamer.io.artifact.fitting import all_slots, owner_of
from gossamer.io.artifact.inventory import Slot, own_slots
from gossamer.io.artifact.manifest import Manifest, SparseEntry
from gossamer.nn import MaskedWeight, Mode, disable_fast_paths, replace_module
from gossamer.nn.forms import to_compact, to_dense, to_masked
from gossamer.nn.layer_kinds import form_of
from gossamer.ops.training import expand_matrix
from gossamer.patterns import Pattern

_ROOT = "model"


class Placement:
    """One run of placing; `matched` comes from `check_fit`, `decoded` from `decode_all`."""

    def __init__(
        self,
        model: nn.Module,
        manifest: Manifest,
        matched: dict[str, str],
        decoded: dict[str, Decoded],
        *,
        in_place: bool,
    ) -> None:
        # A parent for the model itself, so that it can be replaced like any other module.
        self._root = nn.ModuleDict({_ROOT: model})
        self._manifest = manifest
        self._matched = matched
        self._decoded = decoded
        self._in_place = in_place

    @torch.no_grad()
    def run(self) -> nn.Module:
        """The model in the saved state; another object only if the model is one sparse layer."""
        self._make_dense()
        # Ordinary tensors first: sparse layers take over the bias that is there.
        for kind in (torch.Tensor, SparseWeight):
            for name, stored in self._matched.items():
                if stored == name and isinstance(self._decoded.get(name), kind):
                    self._put(self._slot(name), self._decoded.pop(name))
        for name, stored in self._matched.items():
            owner = owner_of(self._manifest, stored)
            if owner != name and enclosing(name, self._manifest.shared_modules) is None:
                self._tie(name, owner)
        for second, original in self._manifest.shared_modules.items():
            parent, _, key = second.rpartition(".")
            self._module(parent)._modules[key] = self._module(original)
        model = self._root[_ROOT]
        disable_fast_paths(model)
        return model

    def _module(self, path: str) -> nn.Module:
        return self._root[_ROOT].get_submodule(path)

    def _slot(self, name: str) -> Slot:
        path, _, attribute = name.rpartition(".")
        slots = own_slots(path, self._module(path))
        return next(slot for slot in slots if slot.attribute == attribute)

    def _make_dense(self) -> None:
        """Layers that are sparse in the model but dense in the file become ordinary ones."""
        for name, slot in all_slots(self._root[_ROOT]).items():
            entry = self._manifest.tensors[owner_of(self._manifest, self._matched[name])]
            if slot.layer is not None and not isinstance(entry, SparseEntry):
                replace_module(self._root, slot.layer, to_dense(slot.layer))

    def _put(self, slot: Slot, decoded: Decoded) -> None:
        if isinstance(decoded, torch.Tensor):
            self._put_tensor(slot, decoded)
        elif isinstance(decoded, SparseWeight):
            put = self._put_masked if decoded.form == "masked" else self._put_compact
            put(slot, decoded.matrix)

    def _keeps(self, slot: Slot) -> bool:
        """Whether the tensor that is there stays and is overwritten."""
        return self._in_place and not slot.tensor.is_meta

    def _put_tensor(self, slot: Slot, tensor: torch.Tensor) -> None:
        if self._keeps(slot):
            slot.tensor.data.copy_(tensor)
        elif slot.is_parameter:
            slot.module._parameters[slot.attribute] = self._parameter(slot, tensor)
        else:
            slot.module._buffers[slot.attribute] = tensor

    def _put_masked(self, slot: Slot, matrix: SparseMatrix) -> None:
        layer, weight = _without_compact(slot.module), expand_matrix(matrix)
        if self._keeps(slot) and layer is slot.module:
            slot.tensor.data.copy_(weight)
        else:
            layer._parameters["weight"] = self._parameter(slot, weight)
        replace_module(self._root, slot.module, to_masked(layer, matrix.mask(), matrix.pattern))

    def _put_compact(self, slot: Slot, matrix: SparseMatrix) -> None:
        mode = self._mode(slot.name)
        if self._in_place and form_of(slot.module) == "compact":
            layer: Any = slot.layer
            layer.take(matrix, mode)
            return
        values = self._parameter(slot, matrix.values)
        bits = matrix.positions.bits().to(values.device)
        new = to_compact(slot.module, values, bits, matrix.pattern, mode)
        replace_module(self._root, slot.module, new)

    def _tie(self, name: str, owner: str) -> None:
        slot, original = self._slot(name), self._slot(owner)
        tied_mask = self._decoded.pop(name, None)
        source: Any = original.layer
        if isinstance(tied_mask, TiedMask):
            self._tie_masked(slot, original.tensor, tied_mask.mask, tied_mask.pattern)
        elif source is not None and source.form == "masked":
            new = self._tie_masked(slot, original.tensor, source.mask(), source.pattern)
            # As nn.masked promises: layers with one weight move their mask together.
            for buffer in ("mask_bits", "_mask"):
                new._buffers[buffer] = source._buffers[buffer]
        elif source is not None:
            shared = (source.values, source.mask_bits, source.pattern, source.mode)
            replace_module(self._root, slot.module, to_compact(slot.module, *shared))
        else:
            table = slot.module._parameters if slot.is_parameter else slot.module._buffers
            table[slot.attribute] = original.tensor  # type: ignore[assignment]

    def _tie_masked(
        self, slot: Slot, weight: torch.Tensor, mask: torch.Tensor, pattern: Pattern
    ) -> MaskedWeight:
        # Masking zeroes pruned entries, which the owner of the weight may need: use a stand-in.
        layer = copy.copy(_without_compact(slot.module))
        layer.__dict__["_parameters"] = {
            **layer._parameters,
            "weight": nn.Parameter(torch.zeros_like(weight)),
        }
        new = to_masked(layer, mask, pattern)
        new._parameters["weight"] = weight  # type: ignore[assignment]
        replace_module(self._root, slot.module, new)
        return new

    def _mode(self, name: str) -> Mode:
        entry = self._manifest.tensors[name]
        return (entry.mode if isinstance(entry, SparseEntry) else None) or "jit"

    def _parameter(self, slot: Slot, tensor: torch.Tensor) -> nn.Parameter:
        old = slot.tensor
        device = old.device if self._keeps(slot) else tensor.device
        trains = old.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        return nn.Parameter(tensor.to(device), requires_grad=trains)


def _without_compact(layer: nn.Module) -> nn.Module:
    return to_dense(layer) if form_of(layer) == "compact" else layer
