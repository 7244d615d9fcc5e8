# SPDX-License-Identifier: Apache-2.0
"""One product of a model that is a single native call: a sparse weight and its bias."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gossamer.formats import SparseMatrix


@dataclass(frozen=True)
class Product:
    """`y = x W^T + b`: the weight, and the bias or None."""

    matrix: SparseMatrix
    bias: torch.Tensor | None

    @classmethod
    def stack(cls, parts: Sequence["Product"]) -> "Product":
        """Products that read the same input as one, outputs behind one another."""
        bias = None
        if any(part.bias is not None for part in parts):
            zeros = [torch.zeros(part.matrix.shape[0]) for part in parts]
            pairs = zip(parts, zeros, strict=True)
            bias = torch.cat([zero if part.bias is None else part.bias for part, zero in pairs])
        return cls(SparseMatrix.stack([part.matrix for part in parts]), bias)
