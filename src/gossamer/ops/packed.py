# SPDX-License-Identifier: Apache-2.0
"""What everything packed for native code is, and how the sparse weight gets there."""

from typing import ClassVar, Self

import torch

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.formats.bits import check_bits
from gossamer.ops import _native


class Packed:
    """Immutable, and of one process: copies of a model share it, and it cannot be pickled."""

    lives: ClassVar[str] = "a packed weight lives"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> str:
        raise KernelError(
            f"{self.lives} in one process and cannot be pickled. Save the model with gossamer.save"
            " and compile it again after loading."
        )


def checked_weight(
    matrix: SparseMatrix, shape: tuple[int, int], kernel: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept values and mask bits of a weight as `kernel` takes them: float32 on the CPU."""
    values, bits = matrix.floats(), matrix.positions.bits()
    if values.dtype is not torch.float32 or values.device.type != "cpu":
        raise KernelError(
            f"{kernel} kernel: values must be float32 on the CPU, got {values.dtype} on"
            f" {values.device}. Convert with .float(), or keep the layer in mode 'jit'."
        )
    check_bits(bits, shape, f"{kernel} kernel")
    return values.detach().contiguous(), bits.contiguous()


def float_array(values: torch.Tensor) -> "_native.FloatArray":
    """A tensor as native code takes it: float32, without gaps."""
    return values.detach().float().contiguous().numpy()


def optional_array(values: torch.Tensor | None) -> "_native.FloatArray | None":
    """`float_array`, and None for None."""
    return None if values is None else float_array(values)
