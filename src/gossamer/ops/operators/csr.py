# SPDX-License-Identifier: Apache-2.0
"""Compressed rows: values, columns and where each row starts; and its products.

A tensor [..., K] is a matrix [T, K]. Legend: T rows, K columns, n kept values.
"""

import warnings
from collections.abc import Mapping

import torch

from gossamer.ops.operators.compressed import TENSOR_FORMATS, CompressedTensor, TensorFormat

_MAX_INT32 = 2**31 - 1


class RowFormat(TensorFormat):
    """`csr`: int32 columns, int32 starts of rows."""

    name = "csr"

    def accepts(self, y: torch.Tensor) -> bool:
        """float32 and float64 of at least one dimension, with int32 for every place."""
        return (
            y.dtype in (torch.float32, torch.float64)
            and y.ndim > 0
            and y.numel() <= _MAX_INT32
            and y.device.type == "cpu"
        )

    def compress(self, y: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Kept entries, row by row."""
        mask_TK = mask.reshape(mask.shape[:-1].numel(), mask.shape[-1])
        counts = mask_TK.sum(1, dtype=torch.int32)
        starts = torch.zeros(len(counts) + 1, dtype=torch.int32)
        torch.cumsum(counts, 0, out=starts[1:])
        places = mask_TK.reshape(-1).nonzero().flatten()
        columns = (places % max(mask_TK.shape[1], 1)).int()
        values = y.reshape(-1)[places]
        return {"values": values, "columns": columns, "starts": starts}

    def dense(self, parts: Mapping[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
        """Values at their places, zeros elsewhere."""
        starts, columns = parts["starts"], parts["columns"].long()
        rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff().long())
        values = parts["values"]
        zeros = values.new_zeros(shape.numel())
        return zeros.index_put((rows * shape[-1] + columns,), values).view(shape)


CSR = TENSOR_FORMATS.add("csr", RowFormat())
with warnings.catch_warnings():  # torch says once that these tensors are in beta
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor(torch.zeros(1), torch.zeros(0), torch.zeros(0), (0, 1))


def matrix(x: CompressedTensor) -> torch.Tensor:
    """Torch's own sparse matrix [T, K] of the same parts, no copy."""
    parts = {name: part.detach() for name, part in x.parts.items()}
    shape = (len(parts["starts"]) - 1, x.shape[-1])
    return torch.sparse_csr_tensor(
        parts["starts"], parts["columns"], parts["values"], shape, check_invariants=False
    )


def at_entries(left_TR: torch.Tensor, right_RK: torch.Tensor, x: CompressedTensor) -> torch.Tensor:
    """The entries of left @ right where x has some, as [n]; nothing else is computed."""
    where = matrix(x)
    if not where.values().numel():
        return where.values()
    made = torch.sparse.sampled_addmm(where, left_TR.contiguous(), right_RK, beta=0.0)
    found: torch.Tensor = made.values()
    return found
