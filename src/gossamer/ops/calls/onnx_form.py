# SPDX-License-Identifier: Apache-2.0
"""Who traces, and what torch.onnx.export gets to see of sparse layers.

A compact layer goes into the file as it is, kept values and packed mask, with the few operators of
ONNX that make a dense weight of them; engines do that once, when they load it. A packed layer has
no such form.

Legend: R rows (outputs), K columns (inputs).
"""

import torch
import torch.nn.functional as F

from gossamer.errors import InputError
from gossamer.ops.addresses import is_watched


def is_traced(x: torch.Tensor) -> bool:
    """Whether somebody records what is computed, or a compiler or torch.func is at work on x."""
    return (
        torch.compiler.is_compiling()
        or is_watched()
        or not isinstance(x, torch.Tensor)
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def is_onnx_export() -> bool:
    """Whether torch.onnx.export is running."""
    # Asking for it takes a microsecond; the exporter does one of the others too.
    return (torch.compiler.is_compiling() or is_watched()) and torch.onnx.is_in_onnx_export()


def expand_for_onnx(
    values: torch.Tensor, mask_bits: torch.Tensor, num_columns: int
) -> torch.Tensor:
    """The dense weight [R, K] of kept values by operators that ONNX has."""
    num_rows = mask_bits.shape[0]
    powers = 2 ** torch.arange(8, dtype=torch.int32, device=mask_bits.device)
    bits = mask_bits.to(torch.int32)[:, :, None].div(powers, rounding_mode="floor") % 2
    kept = bits.reshape(num_rows, -1)[:, :num_columns].reshape(-1)
    # Position 0 of the padded values is what is not kept.
    places = kept.cumsum(0, dtype=torch.int32) * kept
    return F.pad(values, (1, 0)).index_select(0, places).view(num_rows, num_columns)


def refuse_onnx(where: str) -> None:
    """InputError if torch.onnx.export is running."""
    if is_onnx_export():
        raise InputError(
            f"{where}: a compiled model is for this machine and has no ONNX form. Export the model"
            " it was compiled from; or write a dense one with gossamer convert MODEL DENSE --format"
            " dense, and export that."
        )
