# SPDX-License-Identifier: Apache-2.0
"""What a model holds, by the names an ordinary checkpoint would use; whether an artifact fits it.

A masked or compact layer counts as one tensor `<layer>.weight` beside its bias, whatever it keeps
inside. Shared modules and tied tensors are listed once, with the names that refer to them. All
mismatches of an artifact and a model are found before anything is changed.
"""

import copy
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from gossamer.errors import ArtifactError, InputError
from gossamer.io.artifact.agreement import enclosing
from gossamer.io.artifact.manifest import Manifest, SparseEntry, TableEntry, TiedEntry
from gossamer.io.safe_files import listed
from gossamer.io.safe_files.checks import check_name, checked_bytes
from gossamer.io.safe_files.dtypes import DTYPE_CODES, DTYPE_NAMES, dtype_name
from gossamer.nn.forms import can_mask, why_not_compact
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.layers.tables import TableLayer, table_of
from gossamer.nn.prunable import EMBEDDINGS

# Tensors of a sparse layer that its packed weight stands for.
_PACKED_AWAY = {"weight", "values", "mask_bits"}
_TENSOR_TYPES = (torch.Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True)
class Slot:
    """One place in a model that holds a tensor; the weight of a sparse `layer` or of a `table`."""

    path: str
    attribute: str
    module: nn.Module
    tensor: torch.Tensor
    is_parameter: bool
    layer: SparseLayer | None = None
    table: TableLayer | None = None

    @property
    def name(self) -> str:
        """Dotted name, as in a state dict."""
        return f"{self.path}.{self.attribute}" if self.path else self.attribute

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense weight or tensor."""
        holder = self.layer or self.table
        return tuple(self.tensor.shape) if holder is None else holder.weight_shape

    @property
    def dtype(self) -> torch.dtype:
        """That of the dense weight or tensor."""
        return self.tensor.dtype if self.table is None else torch.float32

    def dense(self) -> torch.Tensor:
        """The tensor itself, or the dense weight of a sparse layer or a table."""
        holder = self.layer or self.table
        return self.tensor.detach() if holder is None else holder.dense_weight()

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two slots exactly when they hold one and the same data."""
        tensor = self.tensor
        if tensor.is_meta or tensor.numel() == 0:
            return (id(tensor),)
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        return (self.is_parameter, *place)


@dataclass(frozen=True)
class Inventory:
    """Slots by name in the model's order; the other two map the name of a copy to the original."""

    slots: dict[str, Slot] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    shared_modules: dict[str, str] = field(default_factory=dict)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def as_stored(model: nn.Module) -> nn.Module:
    """The model with every inference layer replaced by what it was made of.

    A module that has `to_compact()` is stored as what that returns. `model` itself is not changed;
    modules that hold none are not copied.
    """
    return _as_stored(model, {})


def _as_stored(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in done:
        return done[module]
    to_compact = getattr(module, "to_compact", None)
    stored = to_compact() if callable(to_compact) else module
    if not isinstance(stored, nn.Module):
        raise InputError(
            f"{type(module).__name__}.to_compact() must return a module, got {type(stored)}."
        )
    # What an encoder was made of may hold inference layers itself.
    children = {
        key: None if child is None else _as_stored(child, done)
        for key, child in stored._modules.items()
    }
    if any(child is not stored._modules[key] for key, child in children.items()):
        stored = copy.copy(stored)
        stored.__dict__["_modules"] = children
    done[module] = stored
    return stored


def take_inventory(model: nn.Module) -> Inventory:
    """Slots, ties and shared modules of `model`; tensors that cannot be stored are refused."""
    inventory = Inventory()
    groups: dict[tuple[object, ...], list[Slot]] = {}
    for slot in _walk(model, inventory.shared_modules):
        check_storable(slot)
        inventory.slots[slot.name] = slot
        groups.setdefault(slot.identity, []).append(slot)
    for path in inventory.shared_modules:
        _as_input_error(check_name, path, "model")
    for group in groups.values():
        # A layer without mask needs every value, so it is the one that stores them.
        tables = [slot for slot in group if slot.table is not None]
        owner = next((slot for slot in (*tables, *group) if slot.layer is None), group[0])
        for slot in group:
            if slot is owner:
                continue
            layers = [layer for layer in (owner.layer, slot.layer) if layer is not None]
            if len({(type(layer), layer.pattern, layer.mask_digest()) for layer in layers}) > 1:
                raise InputError(
                    f"{slot.name}: shares its weight with {owner.name} but has another mask or"
                    " holder, so the two cannot be stored once. Untie them, or give both the same"
                    " mask."
                )
            inventory.tied[slot.name] = owner.name
    return inventory


def own_slots(path: str, module: nn.Module) -> Iterator[Slot]:
    """The slots of one module, without its children."""
    layer: Any = module if form_of(module) in ("masked", "compact") else None
    if layer:
        yield Slot(path, "weight", module, layer.trained(), True, layer)
    table = table_of(module)
    if table is not None:
        yield Slot(path, "weight", module, table.rows().data, True, table=table)
    hidden = module._non_persistent_buffers_set | (_PACKED_AWAY if layer else set())
    hidden |= set() if table is None else set(table.TENSORS)
    for name, tensor in (module._parameters | module._buffers).items():
        if tensor is not None and name not in hidden:
            yield Slot(path, name, module, tensor, name in module._parameters)


def _walk(model: nn.Module, shared: dict[str, str]) -> Iterator[Slot]:
    first_path: dict[nn.Module, str] = {}
    # Depth first in registration order, as named_modules() does.
    stack: list[tuple[str, nn.Module]] = [("", model)]
    while stack:
        path, module = stack.pop()
        if module in first_path:
            shared[path] = first_path[module]
            continue
        first_path[module] = path
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise InputError(
                f"{path or 'model'}: {type(module).__name__} keeps extra state that is not a"
                " tensor; gossamer stores tensors only. Move it to a buffer or into your own code."
            )
        yield from own_slots(path, module)
        for key, child in reversed(module._modules.items()):
            if child is not None:
                stack.append((f"{path}.{key}" if path else key, child))


def _as_input_error(check: Callable[..., object], *args: Any) -> None:
    try:
        check(*args)
    except ArtifactError as error:
        raise InputError(str(error)) from error


def check_storable(slot: Slot) -> None:
    """Raise InputError unless the tensor is plain data under a plain name."""
    name, tensor = slot.name, slot.tensor
    _as_input_error(check_name, name, "model")
    if "::" in name:
        raise InputError(f"{name}: '::' in a name is reserved for packed arrays. Rename it.")
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer) or tensor.is_meta:
        raise InputError(f"{name}: has no values yet; run the model or load its weights first.")
    if type(tensor) not in _TENSOR_TYPES or tensor.layout is not torch.strided:
        raise InputError(
            f"{name}: is a {type(tensor).__name__} of layout {tensor.layout}; expected an ordinary"
            " dense tensor. Gather or densify it first."
        )
    if tensor.dtype not in DTYPE_CODES:
        raise InputError(f"{name}: dtype {tensor.dtype} cannot be stored in safetensors.")
    _as_input_error(checked_bytes, tensor.shape, tensor.element_size(), name)


def all_slots(model: nn.Module) -> dict[str, Slot]:
    """Every slot under every name it has; shared modules appear under each of their paths."""
    modules = model.named_modules(remove_duplicate=False)
    return {slot.name: slot for path, module in modules for slot in own_slots(path, module)}


def tied_names(slots: dict[str, Slot]) -> list[list[str]]:
    """Names that hold one and the same tensor, for tensors with more than one name."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, slot in slots.items():
        groups.setdefault(slot.identity, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def match_names(manifest: Manifest, slots: dict[str, Slot]) -> dict[str, str]:
    """The stored tensor behind every name of the model; names the file lacks are left out."""
    stored, shared = manifest.tensors, manifest.shared_modules
    found: dict[str, str] = {}
    for name in slots:
        copy = None if name in stored else enclosing(name, shared)
        original = name if copy is None else shared[copy] + name[len(copy) :]
        if original in stored:
            found[name] = original
    for names in tied_names(slots):
        # Files of other tools store a tied tensor once and leave the tie to the model.
        known = next((found[name] for name in names if name in found), None)
        for name in names:
            if known is not None:
                found.setdefault(name, known)
    return found


def owner_of(manifest: Manifest, name: str) -> str:
    """The name under which the bytes of a stored tensor are kept."""
    entry = manifest.tensors[name]
    return entry.to if isinstance(entry, TiedEntry) else name


def check_fit(
    manifest: Manifest, model: nn.Module, where: str, *, exact_dtypes: bool
) -> dict[str, str]:
    """`match_names` for `model`, or ArtifactError that lists every mismatch.

    Args:
        manifest: of an artifact whose own consistency was checked.
        model: not changed.
        where: the artifact, for the message.
        exact_dtypes: False where any floating point type may replace another.
    """
    slots = all_slots(model)
    matched = match_names(manifest, slots)
    faults: list[str] = []
    extra = [name for name in manifest.tensors if name not in slots]
    for name in slots:
        if name not in matched:
            # Only for the few that are shown: the search compares with every name.
            near = difflib.get_close_matches(name, extra[:1000], n=1) if len(faults) < 20 else []
            hint = f" (did you mean {near[0]}?)" if near else ""
            faults.append(f"{name}: the model has it, the artifact does not{hint}")
    faults += [f"{name}: the artifact has it, the model does not" for name in extra]
    faults += _shared_faults(manifest, model)
    for name, stored in matched.items():
        faults += _slot_faults(manifest, slots[name], stored, exact_dtypes)
    for names in tied_names(slots):
        owners = {owner_of(manifest, matched[name]) for name in names if name in matched}
        if len(owners) > 1:
            faults.append(f"{', '.join(names)}: one tensor in the model, but {len(owners)} here")
    if faults:
        shown = listed(faults).encode("ascii", "backslashreplace").decode()
        raise ArtifactError(
            f"{where}: does not fit the model; nothing was changed. {len(faults)}"
            f" mismatches:{shown}"
        )
    return matched


def _shared_faults(manifest: Manifest, model: nn.Module) -> list[str]:
    """Second names must be the same kind of module, down to the leaves.

    A module can then never be put inside itself: it would have to be larger than itself.
    """
    modules = dict(model.named_modules(remove_duplicate=False))

    def kinds(name: str) -> list[tuple[str, type]]:
        inside = modules[name].named_modules(remove_duplicate=False) if name in modules else ()
        return [(path, type(module)) for path, module in inside]

    return [
        f"{copy}: the artifact shares it with {original}, the model cannot"
        for copy, original in manifest.shared_modules.items()
        if not kinds(copy) or kinds(copy) != kinds(original)
    ]


def _slot_faults(manifest: Manifest, slot: Slot, stored: str, exact_dtypes: bool) -> list[str]:
    own, entry = manifest.tensors[stored], manifest.tensors[owner_of(manifest, stored)]
    if isinstance(entry, TiedEntry):
        return [f"{slot.name}: is tied to a tensor that is tied itself"]
    faults = []
    if entry.shape != slot.shape:
        faults.append(
            f"{slot.name}: shape {list(entry.shape)} in the artifact, {list(slot.shape)} in the"
            " model"
        )
    found, wanted = DTYPE_NAMES[entry.dtype], slot.dtype
    both_float = found.is_floating_point and wanted.is_floating_point
    if found is not wanted and (exact_dtypes or not both_float):
        faults.append(
            f"{slot.name}: {entry.dtype} in the artifact, {dtype_name(wanted)} in the model; call"
            f" model.to(torch.{entry.dtype}) first"
        )
    if isinstance(entry, TableEntry):
        if isinstance(own, TableEntry) and not isinstance(slot.module, EMBEDDINGS):
            there = type(slot.module).__name__
            faults.append(f"{slot.name}: is a table, but the model has a {there} there")
    elif isinstance(entry, SparseEntry):
        faults += _layer_faults(slot, compact=entry.holder == "compact")
    elif isinstance(own, TiedEntry) and own.mask is not None:
        faults += _layer_faults(slot, compact=False)
    return faults


def _layer_faults(slot: Slot, *, compact: bool) -> list[str]:
    """Why the layer of a slot cannot hold a sparse weight."""
    there = f"but the model has a {type(slot.module).__name__} there"
    if slot.attribute != "weight":
        return [f"{slot.name}: is sparse, but is not the weight of a layer in the model"]
    if not compact:
        return [] if can_mask(slot.module) else [f"{slot.name}: is masked, {there}"]
    why_not = why_not_compact(slot.module)
    return [] if why_not is None else [f"{slot.name}: is compact, {there} ({why_not})"]


def check_materialised(model: nn.Module, where: str) -> None:
    """Raise if a rebuilt model still has tensors without data."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ArtifactError(f"{where}: {name} has no values in the artifact.")
