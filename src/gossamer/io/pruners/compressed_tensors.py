# SPDX-License-Identifier: Apache-2.0
"""Sparse files of compressed-tensors 0.14: `sparse-bitmask` in and out, `sparse-24-bitmask` in.

Per compressed layer the file holds `<layer>.shape`, `.compressed` (kept values in row-major
order), `.bitmask` (uint8 [R, ceil(K/8)], little bit order) and, except for 2:4, `.row_offsets`
(where each row begins in the values). Files of older versions have `<layer>.weight.shape` and so
on; both are read. The arrays are those of our own format `bitmask` and obey the same rules.
"""

from typing import Any

import torch

from gossamer.errors import ArtifactError, FormatError
from gossamer.formats import decode
from gossamer.io.pruners.plain_checkpoint import Tensors
from gossamer.io.safe_files import MAX_TENSOR_BYTES
from gossamer.io.safe_files.checks import check_memory
from gossamer.patterns import NM, Unstructured

__all__ = [
    "bitmask_settings",
    "expand_bitmasks",
    "row_offsets",
]

BITMASK_FORMAT = "sparse-bitmask"
TWO_FOUR_FORMAT = "sparse-24-bitmask"
_SETTINGS_KEY = "quantization_config"
_SPARSITY_KEY = "sparsity_config"
# Later versions dropped the sparse formats.
_VERSION = "0.14.0"
_PARTS = {
    BITMASK_FORMAT: ("shape", "compressed", "bitmask", "row_offsets"),
    TWO_FOUR_FORMAT: ("shape", "compressed", "bitmask"),
}
_PATTERNS = {BITMASK_FORMAT: Unstructured(), TWO_FOUR_FORMAT: NM(2, 4)}
_WEIGHT = ".weight"


def sparsity_format(config: dict[str, Any], where: str) -> str | None:
    """The sparse format that config.json names; None if weights are stored as they are."""
    settings = config.get(_SETTINGS_KEY)
    sparsity = settings.get(_SPARSITY_KEY) if isinstance(settings, dict) else None
    if not isinstance(sparsity, dict) or not sparsity:
        return None
    name = sparsity.get("format")
    if name == "dense":
        return None
    if not isinstance(name, str) or name not in _PARTS:
        raise ArtifactError(
            f"{where}: sparse format {ascii(name)[:40]} cannot be read; known: {', '.join(_PARTS)}."
        )
    if config[_SETTINGS_KEY].get("config_groups"):
        raise ArtifactError(
            f"{where}: its weights are quantised on top of {name}; only sparse floating point"
            " weights can be read. Decompress the model with the tool that wrote it."
        )
    return name


def expand_bitmasks(
    tensors: Tensors, config: dict[str, Any], where: str, *, max_bytes: int | None = None
) -> Tensors:
    """Replace the arrays of compressed layers by their weights, in place.

    Args:
        tensors: everything a checkpoint holds; unchanged if config.json names no sparse format.
        config: the content of config.json.
        where: the checkpoint, for messages.
        max_bytes: refuse weights that need more memory; default: what is available.

    Returns:
        Masks bool [R, K] by the name of the weight.
    """
    name = sparsity_format(config, where)
    if name is None:
        return {}
    layers = [key.removesuffix(".bitmask") for key in tensors if key.endswith(".bitmask")]
    if not layers:
        raise ArtifactError(f"{where}: config.json says {name}, but no tensor is compressed.")
    for layer in layers:
        missing = [part for part in _PARTS[name] if f"{layer}.{part}" not in tensors]
        if missing:
            raise ArtifactError(f"{where}: layer {layer!a} has no {', '.join(missing)}.")
    arrays = {layer: {p: tensors[f"{layer}.{p}"] for p in _PARTS[name]} for layer in layers}
    stored = needed = 0
    for layer, own in arrays.items():
        rows, columns = _checked_shape(own, name, f"{where}: layer {layer!a}")
        stored += sum(array.nbytes for array in own.values())
        # The weight and, while it is expanded, a mask of one byte per weight.
        needed += rows * columns * (own["compressed"].element_size() + 1)
    check_memory(needed, stored, max_bytes, where)
    masks: Tensors = {}
    for layer, own in arrays.items():
        for part in own:
            del tensors[f"{layer}.{part}"]
        weight = layer if layer.endswith(_WEIGHT) else layer + _WEIGHT
        if weight in tensors:
            raise ArtifactError(f"{where}: {weight!a} is stored dense and compressed.")
        tensors[weight], masks[weight] = _expand(own, name, f"{where}: layer {layer!a}")
    return masks


def _checked_shape(arrays: Tensors, name: str, where: str) -> tuple[int, int]:
    """[R, K] of the weight, after everything that can be checked without expanding it."""
    shape = arrays["shape"]
    if shape.dtype not in (torch.int64, torch.int32) or shape.numel() != 2:
        raise ArtifactError(
            f"{where}: shape must be two integers, got {shape.dtype} {list(shape.shape)}; only"
            " matrices can be read."
        )
    rows, columns = shape.flatten().tolist()
    bits_RB, values = arrays["bitmask"], arrays["compressed"]
    wanted = [rows, (columns + 7) // 8]
    if bits_RB.dtype is not torch.uint8 or list(bits_RB.shape) != wanted:
        raise ArtifactError(
            f"{where}: the bitmask of a {[rows, columns]} weight must be uint8 {wanted}, got"
            f" {bits_RB.dtype} {list(bits_RB.shape)}."
        )
    # An empty bitmask agrees with any number of rows or columns.
    if rows < 0 or columns < 0 or rows * columns * values.element_size() > MAX_TENSOR_BYTES:
        raise ArtifactError(f"{where}: shape {[rows, columns]} is out of bounds.")
    if name == TWO_FOUR_FORMAT and (columns % 4 or tuple(values.shape) != (rows, columns // 2)):
        raise ArtifactError(
            f"{where}: 2:4 values of a {[rows, columns]} weight must be {[rows, columns // 2]} with"
            f" columns in fours, got {list(values.shape)}."
        )
    return rows, columns


def _expand(arrays: Tensors, name: str, where: str) -> tuple[torch.Tensor, torch.Tensor]:
    shape, values = tuple(arrays["shape"].flatten().tolist()), arrays["compressed"]
    if name == TWO_FOUR_FORMAT:
        values = values.reshape(-1)
    own = {"values": values, "bitmask": arrays["bitmask"]}
    try:
        matrix = decode("bitmask", own, shape, _PATTERNS[name], where)
    except (FormatError, ValueError) as error:
        raise ArtifactError(str(error)) from error
    mask_RK, found = matrix.mask(), arrays.get("row_offsets")
    if found is not None and (
        found.dtype is not torch.int64 or not torch.equal(found, row_offsets(mask_RK))
    ):
        raise ArtifactError(f"{where}: row_offsets do not say where the rows of the bitmask begin.")
    return matrix.dense(), mask_RK


def row_offsets(mask_RK: torch.Tensor) -> torch.Tensor:
    """Where each row begins among the kept values, int64 [R]."""
    counts_R = mask_RK.sum(dim=1)
    return counts_R.cumsum(0) - counts_R


def bitmask_settings(layers: list[str], sparsity: float, structure: str) -> dict[str, Any]:
    """What config.json says of a model with sparse-bitmask files: its layers, and their zeros."""
    about = {
        "format": BITMASK_FORMAT,
        "targets": layers,
        "ignore": [],
        "global_sparsity": sparsity,
        "sparsity_structure": structure,
    }
    settings = {"quant_method": "compressed-tensors", "format": "dense", "version": _VERSION}
    return {_SETTINGS_KEY: settings | {_SPARSITY_KEY: about}}
