# SPDX-License-Identifier: Apache-2.0
"""Does an artifact fit a model? All mismatches are found before anything is changed."""

import difflib

from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.artifact.agreement import enclosing
from gossamer.io.artifact.inventory import Slot, own_slots
from gossamer.io.artifact.manifest import Manifest, SparseEntry, TiedEntry
from gossamer.io.safe_files import listed
from gossamer.io.safe_files.tensors import DTYPE_NAMES, dtype_name
from gossamer.nn.forms import can_mask, why_not_compact


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
    faults = _name_faults(manifest, slots, matched) + _shared_faults(manifest, model)
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


def _name_faults(manifest: Manifest, slots: dict[str, Slot], matched: dict[str, str]) -> list[str]:
    extra = [name for name in manifest.tensors if name not in slots]
    faults: list[str] = []
    for name in slots:
        if name not in matched:
            # Only for the few that are shown: the search compares with every name.
            near = difflib.get_close_matches(name, extra[:1000], n=1) if len(faults) < 20 else []
            hint = f" (did you mean {near[0]}?)" if near else ""
            faults.append(f"{name}: the model has it, the artifact does not{hint}")
    return faults + [f"{name}: the artifact has it, the model does not" for name in extra]


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
    found, wanted = DTYPE_NAMES[entry.dtype], slot.tensor.dtype
    both_float = found.is_floating_point and wanted.is_floating_point
    if found is not wanted and (exact_dtypes or not both_float):
        faults.append(
            f"{slot.name}: {entry.dtype} in the artifact, {dtype_name(wanted)} in the model; call"
            f" model.to(torch.{entry.dtype}) first"
        )
    if isinstance(entry, SparseEntry):
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
