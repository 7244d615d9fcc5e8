# SPDX-License-Identifier: Apache-2.0
"""A model from an artifact, and ordinary tensors into a model by the same rules."""

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.formats import SparseMatrix
from gossamer.io.artifact.agreement import enclosing, memory_needed
from gossamer.io.artifact.architecture import build, put_channels, put_patterns, put_relus
from gossamer.io.artifact.inventory import (
    Slot,
    all_slots,
    check_fit,
    check_materialised,
    own_slots,
    owner_of,
    unwrap,
)
from gossamer.io.artifact.manifest import (
    DenseEntry,
    Manifest,
    SparseEntry,
    TableEntry,
    TransformersNode,
)
from gossamer.io.artifact.opened import OpenArtifact, open_artifact
from gossamer.io.artifact.packing import Arrays, Decoded, SparseWeight, TiedMask, decode_all
from gossamer.io.safe_files.checks import check_memory
from gossamer.io.safe_files.directories import AnyPath
from gossamer.io.safe_files.dtypes import dtype_name
from gossamer.nn.forms import to_compact, to_dense, to_masked
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.layers import MaskedWeight, Mode
from gossamer.nn.layers.tables import TableState
from gossamer.nn.surgery import disable_fast_paths, replace_module, unchanged_on_error
from gossamer.ops.training.expansion import expand_matrix
from gossamer.patterns import Pattern

_ROOT = "model"


def load_artifact(
    path: AnyPath, model: nn.Module | None, max_bytes: int | None
) -> tuple[nn.Module, bool]:
    """The model, and whether the artifact says which of its layers have masks."""
    with open_artifact(path) as artifact:
        manifest, where = artifact.manifest, str(artifact.path)
        check_memory(memory_needed(manifest), artifact.num_bytes, max_bytes, where)
        target = unwrap(model) if model is not None else _skeleton(artifact)
        # Of a model of the user's, patterns, sizes and ReLUs are all that changes before all fits.
        changes = manifest.attention or manifest.channels or manifest.relus
        with unchanged_on_error(target, contents=()) if changes else nullcontext():
            if model is not None:
                put_channels(target, manifest.channels, where)
                put_relus(target, manifest.relus, where)
                put_patterns(target, manifest.attention, where)
            matched = check_fit(manifest, target, where, exact_dtypes=model is not None)
            if model is None:
                # Buffers that no file holds are computed, of sizes that config.json names.
                needed = memory_needed(manifest) + _unsaved_bytes(target)
                check_memory(needed, artifact.num_bytes, max_bytes, where)
            decoded = decode_all(manifest, artifact.read(), where)
        if model is None and isinstance(manifest.architecture, TransformersNode):
            target = _skeleton(artifact, device="cpu")
    result = Placement(target, manifest, matched, decoded, in_place=model is not None).run()
    if model is None:
        check_materialised(result, where)
        model = result.eval()
    return model if result is target else result, manifest.kind != "dense"


def artifact_skeleton(path: AnyPath) -> tuple[nn.Module, float | None]:
    """The model without weights, dense, and the kept fraction of its masked layers if any."""
    with open_artifact(path) as artifact:
        masks = [e for e in artifact.manifest.tensors.values() if isinstance(e, SparseEntry)]
        entries = sum(math.prod(entry.shape) for entry in masks)
        kept = sum(entry.mask.nnz for entry in masks)
        return _skeleton(artifact), kept / entries if entries else None


def fill(model: nn.Module, tensors: Arrays, path: Path) -> nn.Module:
    """`model` with the tensors of an ordinary checkpoint, filled in place as by a dense artifact.

    A model that is itself a single layer may come back as another object.
    """
    entries = {
        name: DenseEntry(file=path.name, shape=tuple(t.shape), dtype=dtype_name(t.dtype))
        for name, t in tensors.items()
    }
    manifest = Manifest.model_construct(tensors=entries)
    target = unwrap(model)
    matched = check_fit(manifest, target, str(path), exact_dtypes=True)
    result = Placement(target, manifest, matched, {**tensors}, in_place=True).run()
    return model if result is target else result


def _skeleton(artifact: OpenArtifact, device: str = "meta") -> nn.Module:
    manifest = artifact.manifest
    if manifest.architecture is None:
        raise ArtifactError(
            f"{artifact.path}: does not describe its architecture, because the model is not made of"
            " known parts only. Build the model and pass it: gossamer.load(path, model=model)."
        )
    # A module that is shared is described under each of its names but stored once. Buffers that
    # are not saved count too.
    most = 2 * len(manifest.tensors) + 64 * len(manifest.shared_modules) + 64
    config = artifact.config()
    model = build(manifest.architecture, max_tensors=most, config=config, device=device)
    put_channels(model, manifest.channels, str(artifact.path))
    put_relus(model, manifest.relus, str(artifact.path))
    put_patterns(model, manifest.attention, str(artifact.path))
    return model


@dataclass
class Placement:
    """Puts decoded tensors into a model. All checks were made before; nothing here refuses.

    In a model of the user's, tensors are overwritten in place, so that optimizers keep their
    Parameters. In a skeleton that was just built, and in models on the meta device, the loaded
    tensors become the Parameters. `matched` comes from `check_fit`, `decoded` from `decode_all`.
    """

    model: nn.Module
    manifest: Manifest
    matched: dict[str, str]
    decoded: dict[str, Decoded]
    in_place: bool

    def __post_init__(self) -> None:
        # A parent for the model itself, so that it can be replaced like any other module.
        self._root = nn.ModuleDict({_ROOT: self.model})

    @torch.no_grad()
    def run(self) -> nn.Module:
        """The model in the saved state; another object only if the model is one sparse layer."""
        # Layers that are sparse in the model but dense in the file become ordinary ones.
        for name, slot in all_slots(self._root[_ROOT]).items():
            entry = self.manifest.tensors[owner_of(self.manifest, self.matched[name])]
            if slot.layer is not None and not isinstance(entry, SparseEntry):
                replace_module(self._root, slot.layer, to_dense(slot.layer))
            elif slot.table is not None and not isinstance(entry, TableEntry):
                replace_module(self._root, slot.table, to_dense(slot.table))
        # Ordinary tensors first: sparse layers take over the bias that is there.
        for kind in (torch.Tensor, TableState, SparseWeight):
            for name, stored in self.matched.items():
                if stored == name and isinstance(self.decoded.get(name), kind):
                    self._put(self._slot(name), self.decoded.pop(name))
        for name, stored in self.matched.items():
            owner = owner_of(self.manifest, stored)
            if owner != name and enclosing(name, self.manifest.shared_modules) is None:
                self._tie(name, owner)
        for second, original in self.manifest.shared_modules.items():
            parent, _, key = second.rpartition(".")
            self._module(parent)._modules[key] = self._module(original)
        model = self._root[_ROOT]
        disable_fast_paths(model)
        return model

    def _module(self, path: str) -> nn.Module:
        return self._root[_ROOT].get_submodule(path)

    def _slot(self, name: str) -> Slot:
        path = name.rpartition(".")[0]
        return next(slot for slot in own_slots(path, self._module(path)) if slot.name == name)

    def _put(self, slot: Slot, decoded: Any) -> None:
        if isinstance(decoded, TableState):
            if not (self.in_place and decoded.copy_into(slot.module)):
                replace_module(self._root, slot.module, decoded.restored(slot.module, slot.name))
        elif not isinstance(decoded, torch.Tensor):
            puts = {"masked": self._put_masked, "compact": self._put_compact}
            puts[decoded.form](slot, decoded.matrix)
        elif self._keeps(slot):
            slot.tensor.data.copy_(decoded)
        elif slot.is_parameter:
            slot.module._parameters[slot.attribute] = self._parameter(slot, decoded)
        else:
            slot.module._buffers[slot.attribute] = decoded

    def _keeps(self, slot: Slot) -> bool:
        """Whether the tensor that is there stays and is overwritten."""
        return self.in_place and not slot.tensor.is_meta

    def _put_masked(self, slot: Slot, matrix: SparseMatrix) -> None:
        layer, weight = _without_compact(slot.module), expand_matrix(matrix)
        if self._keeps(slot) and layer is slot.module:
            slot.tensor.data.copy_(weight)
        else:
            layer._parameters["weight"] = self._parameter(slot, weight)
        replace_module(self._root, slot.module, to_masked(layer, matrix.mask(), matrix.pattern))

    def _put_compact(self, slot: Slot, matrix: SparseMatrix) -> None:
        entry: Any = self.manifest.tensors[slot.name]
        mode: Mode = entry.mode or "jit"
        if self.in_place and form_of(slot.module) == "compact":
            slot.module.take(matrix, mode)  # type: ignore[operator]
            return
        values = self._parameter(slot, matrix.values)
        bits = matrix.positions.bits().to(values.device)
        new = to_compact(slot.module, values, bits, matrix.pattern, mode)
        replace_module(self._root, slot.module, new)

    def _tie(self, name: str, owner: str) -> None:
        slot, original = self._slot(name), self._slot(owner)
        tied_mask = self.decoded.pop(name, None)
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
        stand_in = {"weight": nn.Parameter(torch.zeros_like(weight))}
        layer.__dict__["_parameters"] = layer._parameters | stand_in
        new = to_masked(layer, mask, pattern)
        new._parameters["weight"] = weight  # type: ignore[assignment]
        replace_module(self._root, slot.module, new)
        return new

    def _parameter(self, slot: Slot, tensor: torch.Tensor) -> nn.Parameter:
        device = slot.tensor.device if self._keeps(slot) else tensor.device
        trains = slot.tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        return nn.Parameter(tensor.to(device), requires_grad=trains)


def _unsaved_bytes(skeleton: nn.Module) -> int:
    """Bytes of the buffers that are computed when a model is built."""
    return sum(
        tensor.nbytes
        for module in skeleton.modules()
        for name, tensor in module._buffers.items()
        if tensor is not None and name in module._non_persistent_buffers_set
    )


def _without_compact(layer: nn.Module) -> nn.Module:
    return to_dense(layer) if form_of(layer) == "compact" else layer
