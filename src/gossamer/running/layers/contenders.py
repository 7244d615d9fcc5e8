# SPDX-License-Identifier: Apache-2.0
"""What could run one layer: its dense weight and the kernels that accept it.

Legend: R rows (outputs), K columns (inputs).
"""

import torch

from gossamer.formats import SparseMatrix
from gossamer.ops.dispatch import Kernel, Problem, Run


class Contenders:
    """The dense weight of a layer, its zeros exact, and kernels that are packed when first run.

    Inputs of a race have the dtype of the dense weight; `matrix` is float32 all the same.
    """

    def __init__(
        self, matrix: SparseMatrix, weight_RK: torch.Tensor, kernels: tuple[Kernel, ...]
    ) -> None:
        self.matrix = matrix
        self.weight_RK = weight_RK
        self.kernels = kernels
        self._packed: dict[str, Run] = {}

    def for_tokens(self, tokens: int) -> tuple[Kernel, ...]:
        """Those worth a measurement at this number of tokens."""
        return tuple(kernel for kernel in self.kernels if kernel.suits(tokens))

    def cost_name(self, kernel: Kernel) -> str:
        """The kernel in the cost table: a 16-bit layer is another race than a 32-bit one."""
        dtype = self.weight_RK.dtype
        return kernel.name if dtype is torch.float32 else f"{kernel.name}/{dtype}"

    def packed(self, kernel: Kernel) -> Run:
        """The weight as `kernel` runs it."""
        if kernel.name not in self._packed:
            self._packed[kernel.name] = kernel.pack(Problem(self.matrix))
        return self._packed[kernel.name]
