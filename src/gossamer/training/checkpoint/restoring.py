# SPDX-License-Identifier: Apache-2.0
"""A run brought back to what its checkpoint says: counters, forms of layers, weights, moments.

A run that is resumed after compaction builds the dense model anew; masks come from the checkpoint.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, GossamerError
from gossamer.formats.bits import unpack_bits
from gossamer.formats.matrix import matrix_shape
from gossamer.io.safe_files.dtypes import DTYPE_NAMES, dtype_name
from gossamer.nn.forms import mask_in
from gossamer.nn.layer_kinds import kind_of, sparse_layers
from gossamer.nn.layer_weights import shape_of
from gossamer.nn.layers.tables.late_rows import LateRows, forget_late, late_of
from gossamer.nn.surgery.compaction import compact
from gossamer.patterns import parse_pattern

__all__ = [
    "COUNTED",
    "late_tables",
    "layer_forms",
    "read_counters",
    "restore_forms",
    "restore_model",
    "restore_optimizer",
]

# Whole numbers of a run that decide its next steps.
COUNTED = ("step", "taken", "skipped", "in_a_row", "rate_shift")


def layer_forms(model: nn.Module) -> dict[str, Any]:
    """Name -> form, pattern and mode of every masked and compact layer."""
    forms = {}
    for name, layer in sparse_layers(model, "masked", "compact"):
        forms[name] = {"form": layer.form, "pattern": str(layer.pattern)}
        if layer.form == "compact":
            forms[name] |= {"mode": layer.mode, "dtype": dtype_name(layer.values.dtype)}
    return forms


def restore_forms(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    forms: Mapping[str, Mapping[str, Any]],
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Mask and compact layers of `model` as `forms` says; the optimizer follows.

    Args:
        model: as it was built; layers that have their form already are left alone.
        optimizer: holds its parameters.
        forms: from `layer_forms`.
        tensors: the model's saved state, for the masks.
    """
    modules, compacted = dict(model.named_modules()), dict(sparse_layers(model, "compact"))
    try:
        for name, entry in forms.items():
            if name not in modules:
                raise ArtifactError(f"{name}: the checkpoint has this layer, the model has not.")
            if name not in compacted:
                module, bits = modules[name], tensors[f"{name}.mask_bits"]
                try:
                    if not kind_of(module, has_masks=True):
                        raise ArtifactError(f"a {type(module).__name__} cannot be masked.")
                    mask = unpack_bits(bits, matrix_shape(shape_of(module))[1])
                    mask_in(model, module, mask, parse_pattern(entry["pattern"]))
                except GossamerError as error:
                    raise ArtifactError(
                        f"layers: a saved mask does not fit the model ({error})"
                    ) from error
        now = layer_forms(model)
        if any(now[name]["form"] != entry["form"] for name, entry in forms.items()):
            compact(model, optimizer)
        for name, layer in sparse_layers(model, "compact"):
            if name in forms:
                layer.take_back_values()
                # Masters that were split: the Parameter object stays, as the optimizer knows it.
                layer.values.data = layer.values.data.to(DTYPE_NAMES[forms[name]["dtype"]])
                layer.switch(forms[name]["mode"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"layers: the saved forms are not usable ({error}).") from error
    if layer_forms(model) != {name: dict(entry) for name, entry in forms.items()}:
        raise ArtifactError(
            "layers: the checkpoint's masked and compact layers are not those of this model."
            " Resume with the recipe and the model of that run."
        )


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, keep_settings: bool = False
) -> None:
    """Put a saved `optimizer.state_dict()` into an optimizer that was built alike.

    Args:
        optimizer: holds as many parameters in as many groups as the one that was saved.
        state: tensors in it are taken over, not copied.
        keep_settings: learning rate and the like stay as they are; only moments are taken.
    """
    groups = optimizer.param_groups
    saved: Any = state.get("param_groups")
    _check_number("groups", groups, saved)
    for group, old in zip(groups, saved, strict=True):
        held = old.get("params") if isinstance(old, dict) else None
        _check_number("parameters", group["params"], held)
    parameters = [param for group in groups for param in group["params"]]
    entries = state.get("state")
    if not isinstance(entries, dict) or not all(
        isinstance(index, int) and 0 <= index < len(parameters) for index in entries
    ):
        raise ArtifactError("optimizer: the saved state names parameters that are not there.")
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(dict(state))  # It knows better than to cast.
        return
    optimizer.state.clear()
    for index, entry in entries.items():
        param = parameters[index]
        optimizer.state[param] = {
            # Step counts stay on the CPU, as torch keeps them.
            key: value.to(param.device) if getattr(value, "ndim", 0) else value
            for key, value in entry.items()
        }
    for group, old in zip(groups, saved, strict=True):
        if not keep_settings:
            group.update({key: value for key, value in old.items() if key != "params"})


def _check_number(what: str, expected: list[Any], found: Any) -> None:
    number = len(found) if isinstance(found, list) else "none"
    if number != len(expected):
        raise ArtifactError(
            f"optimizer: the checkpoint holds {number} {what}, this optimizer {len(expected)}. It"
            " was saved by another model or optimizer; resume with the recipe of that run."
        )


def read_counters(state: Any) -> dict[str, Any]:
    """The counters of a captured state, if each is the number it should be."""
    found: Any = state.get("counters") if isinstance(state, dict) else None
    whole = dict.fromkeys((*COUNTED, "metrics_bytes"), int)
    types = {**whole, "compacted": bool, "losses": list, "seconds": list}
    if not (
        isinstance(found, dict)
        and all(type(found.get(name)) is kind for name, kind in types.items())
        and all(found[name] >= 0 for name in whole if name != "rate_shift")
        and all(isinstance(loss, float) for loss in found["losses"])
        and [type(part) for part in found["seconds"]] == [float, float]
    ):
        raise ArtifactError("checkpoint: its counters are not what a run writes.")
    return dict(found)


def restore_model(model: nn.Module, tensors: Mapping[str, Any]) -> None:
    """Put saved weights into a model whose layers have their forms.

    Tables that have no numbers yet take the saved tensors themselves, not copies: whoever cuts them
    may leave most of them in their file.
    """
    try:
        late = _take_late(model, tensors)
        result = model.load_state_dict(
            {name: tensor for name, tensor in tensors.items() if name not in late}, strict=False
        )
        missing = sorted(set(result.missing_keys) - late)
        if missing or result.unexpected_keys:
            raise RuntimeError(
                f"missing: {', '.join(missing) or 'none'};"
                f" unexpected: {', '.join(result.unexpected_keys) or 'none'}"
            )
    except RuntimeError as error:
        raise ArtifactError(
            f"checkpoint: its weights are not those of this model ({str(error)[:300]}). Resume with"
            " the recipe and the model of that run."
        ) from error


def late_tables(model: nn.Module) -> dict[str, tuple[nn.Module, LateRows]]:
    """Tables without numbers and what fills them, by the name of their weight."""
    found = {}
    for path, module in model.named_modules():
        rows = late_of(module)
        if rows is not None:
            found[f"{path}.weight" if path else "weight"] = (module, rows)
    return found


def _take_late(model: nn.Module, tensors: Mapping[str, Any]) -> set[str]:
    """Let tables without numbers have those of `tensors`, which they take over; their names."""
    taken = set()
    for name, (table, _) in late_tables(model).items():
        weight: Any = table._parameters["weight"]
        saved = tensors.get(name)
        if saved is not None and saved.shape == weight.shape and saved.dtype == weight.dtype:
            weight.data = saved
            forget_late(table)
            taken.add(name)
    return taken
