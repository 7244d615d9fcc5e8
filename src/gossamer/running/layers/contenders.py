# SPDX-License-Identifier: Apache-2.0
"""What could run one layer: its dense weight and the kernels that accept it.

Legend: R rows (outputs), K columns (inputs).
"""

import torch

from gossamer.formats.base import SparseTensor
from gossamer.ops.dispatch import Kernel, Run


class Contenders:
    """The dense weight of a layer, its zeros exact, and kernels that are packed when first run.

    Inputs of a race have the dtype of the dense weight; `sparse` is float32 all the same.
    """

    def __init__(
        self, sparse: SparseTensor, weight_RK: torch.Tensor, kernels: tuple[Kernel, ...]
    ) -> None:
        self.sparse = sparse
        self.weight_RK = weight_RK
        self.kernels = kernels
        self.density = sparse.nnz / max(weight_RK.numel(), 1)
        self._packed: dict[str, Run] = {}

    def for_tokens(self, tokens: int) -> tuple[Kernel, ...]:
        """Those worth a measurement at this number of tokens."""
        return tuple(k for k in self.kernels if k.max_tokens is None or tokens <= k.max_tokens)

    def cost_name(self, kernel: Kernel) -> str:
        """The kernel in the cost table: a 16-bit layer is another race than a 32-bit one."""
        dtype = self.weight_RK.dtype
        return kernel.name if dtype is torch.float32 else f"{kernel.name}/{dtype}"

    def packed(self, kernel: Kernel) -> Run:
        """The weight as `kernel` runs it."""
        if kernel.name not in self._packed:
            self._packed[kernel.name] = kernel.prepare(self.sparse)
        return self._packed[kernel.name]
