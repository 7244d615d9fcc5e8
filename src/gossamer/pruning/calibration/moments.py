# SPDX-License-Identifier: Apache-2.0
"""Second moments of a layer's inputs: their Gram matrix, or only its diagonal.

Legend: T rows (tokens, or image patches), K columns (inputs of one output).
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import unfold

from gossamer.errors import InputError
from gossamer.pruning.solvers.problem import Needed

# The Gram matrix is symmetric: strips of columns compute the upper part only, 5/8 of the work.
_STRIPS = 4
_MIN_STRIP = 64


def moments(
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    keep: Sequence[torch.Tensor | None],
    needed: Needed,
    where: str,
) -> torch.Tensor:
    """Mean outer product [K, K] (or mean squares [K]) of the rows that enter `module`.

    Args:
        module: Linear or Conv2d.
        inputs: one tensor per batch.
        keep: which positions of each batch count, bool [B, T]; None for all.
        needed: "gram" or "squares".
        where: the layer's name, for messages.
    """
    total: torch.Tensor | None = None
    count = 0
    for x, kept in zip(inputs, keep, strict=True):
        rows_TK = input_rows(module, x, kept, where)
        part = square(rows_TK) if needed == "squares" else gram(rows_TK)
        total = part if total is None else total.add_(part)
        count += len(rows_TK)
    if total is None or not count:
        raise InputError(f"{where}: no row of the calibration data reached this layer.")
    if not bool(torch.isfinite(total).all()):
        raise InputError(
            f"{where}: its inputs on the calibration data are NaN or too large to square. Run the"
            " model on the data and look at this layer."
        )
    return total.div_(count)


def input_rows(
    module: nn.Module, x: torch.Tensor, keep: torch.Tensor | None, where: str
) -> torch.Tensor:
    """What one output sees, a row per token or pixel: float32 (or float64) [T, K]."""
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or isinstance(module.padding, str):
            raise InputError(
                f"{where}: statistics of inputs are built for convolutions without groups and with"
                " padding in numbers. Use the magnitude scorer, or add the layer to ignore=[...]."
            )
        patches = unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
        rows = patches.transpose(1, 2).flatten(0, 1)
    else:
        if keep is not None and x.shape[: keep.ndim] == keep.shape:
            x = x[keep]
        rows = x.reshape(-1, x.shape[-1])
    return rows if rows.dtype == torch.float64 else rows.float()


def square(rows_TK: torch.Tensor) -> torch.Tensor:
    """Sums of squares [K]."""
    return rows_TK.square().sum(dim=0)


def gram(rows_TK: torch.Tensor) -> torch.Tensor:
    """X^T X."""
    width = rows_TK.shape[1]
    result_KK = rows_TK.new_empty(width, width)
    step = max(_MIN_STRIP, -(-width // _STRIPS))
    for first in range(0, width, step):
        last = min(first + step, width)
        strip = rows_TK[:, first:last].T @ rows_TK[:, first:]
        result_KK[first:last, first:] = strip
        result_KK[first:, first:last] = strip.T
    return result_KK


def cross_gram(first_TK: torch.Tensor, second_TK: torch.Tensor) -> torch.Tensor:
    """A^T B of two sets of rows."""
    return first_TK.T @ second_TK
