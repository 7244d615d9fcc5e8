# SPDX-License-Identifier: Apache-2.0
"""Weights in the types of gguf files: the smallest that holds every one, or the one asked for.

A weight on a grid of `formats/grid/` keeps its codes and scales, if the scales are float16 to the
last bit; any other is tried with the package's own rounding, which finds the grids of files that
were quantised before. What counts is what the package gguf reads back.

Legend: R rows, K columns, G spans of a row, B blocks of 32 columns.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gossamer.errors import InputError
from gossamer.formats.grid import Grid, find_grid

BLOCK = 32
AUTO = "auto"
# Smallest first; those of 16 bits in the order of what more readers know.
QUANTISED = ("Q4_0", "Q4_1", "Q8_0")
# Bits of a code, and whether there are offsets.
_GRIDS = {"Q4_0": (4, False), "Q4_1": (4, True), "Q8_0": (8, False)}
_SAMPLED_ROWS = 8
GGUF_TYPES = (AUTO, "F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0")


@dataclass(frozen=True)
class Stored:
    """A tensor as a file has it.

    Attributes:
        kind: name of its type.
        data: bytes of blocks, or numbers of the type.
        lost_zeros: weights that were 0 and are not any more.
        changed: weights that are others than before.
        error: the largest difference, as a part of the largest weight.
    """

    kind: str
    data: Any
    lost_zeros: int = 0
    changed: int = 0
    error: float = 0.0


def stored_as(weight: torch.Tensor, kind: str) -> Stored:
    """A float32 tensor in `kind`; vectors stay float32, rows that blocks do not fit become 16 bits.

    Args:
        weight: finite numbers.
        kind: one of GGUF_TYPES; "auto" is the smallest type that changes no number.

    Raises:
        InputError: NaN or infinity.
    """
    if not bool(weight.isfinite().all()):
        raise InputError("gguf: weights must be finite, found NaN or infinity.")
    if weight.ndim < 2 or kind == "F32" or not weight.numel():
        return Stored("F32", weight.numpy())
    fits = weight.ndim == 2 and weight.shape[1] % BLOCK == 0
    grid = find_grid(weight, may_have_offsets=True) if fits else None
    if kind == AUTO or (kind in QUANTISED and not fits):
        tried = (*(QUANTISED if fits and kind == AUTO else ()), "F16", "BF16")
        found = (_exact(weight, name, grid) for name in tried)
        return next((stored for stored in found if stored), Stored("F32", weight.numpy()))
    return _exact(weight, kind, grid) or _rounded(weight, kind)


def _exact(weight: torch.Tensor, kind: str, grid: Grid | None) -> Stored | None:
    """The weight in a type that changes no number of it; a few rows are tried first."""
    own = _by_grid(weight, kind, grid)
    if own is not None and not own.changed:
        return own
    for part in (weight[:: max(1, len(weight) // _SAMPLED_ROWS)].contiguous(), weight):
        rounded = _rounded(part, kind)
        if rounded.changed:
            return None
    return rounded


def _rounded(weight: torch.Tensor, kind: str) -> Stored:
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):  # too large for float16 is found when it is compared
        data = quants.quantize(weight.numpy(), GGMLQuantizationType[kind])
    return _compared(weight, kind, data)


def _by_grid(weight_RK: torch.Tensor, kind: str, grid: Grid | None) -> Stored | None:
    """Codes and scales of the grid that a weight is on, if it is that of the type."""
    if grid is None or (grid.bits, grid.has_offsets) != _GRIDS.get(kind):
        return None
    if grid.span % BLOCK and grid.span < weight_RK.shape[1]:
        return None
    codes_RK, scales_RG, offsets_RG = grid.encode(weight_RK)
    columns = weight_RK.shape[1]
    per_block = [
        grid.spread(numbers, columns)[:, ::BLOCK].reshape(-1, 1).numpy().astype(np.float16)
        for numbers in (scales_RG, offsets_RG)
        if numbers is not None
    ]
    codes_B32 = codes_RK.reshape(-1, BLOCK).numpy()
    packed: Any
    if grid.bits == 8:
        packed = codes_B32.astype(np.int8).view(np.uint8)
    else:
        nibbles = (codes_B32 + (0 if grid.has_offsets else 8)).astype(np.uint8)
        packed = nibbles[:, : BLOCK // 2] | (nibbles[:, BLOCK // 2 :] << 4)
    blocks = np.concatenate([*(part.view(np.uint8) for part in per_block), packed], axis=1)
    return _compared(weight_RK, kind, blocks.reshape(len(weight_RK), -1))


def _compared(weight: torch.Tensor, kind: str, data: Any) -> Stored:
    """What the package reads back, beside what it was."""
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        read = quants.dequantize(data, GGMLQuantizationType[kind]).reshape(weight.shape)
    again = torch.from_numpy(np.array(read, dtype=np.float32))
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    apart = (again - weight).abs()
    changed = int((again != weight).sum())
    if not changed:
        return Stored(kind, data)
    error = float(apart.max()) / largest if largest else float("inf")
    return Stored(kind, data, int(((weight == 0) & (again != 0)).sum()), changed, error)
