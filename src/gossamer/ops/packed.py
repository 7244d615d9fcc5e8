# SPDX-License-Identifier: Apache-2.0
"""What everything packed for native code has in common: weights, activations, refusals."""

from typing import ClassVar, Self

import torch

from gossamer.errors import InputError, KernelError
from gossamer.formats import SparseMatrix
from gossamer.formats.bits import check_bits
from gossamer.ops import _native
from gossamer.ops.calls import NO_GRADIENTS

ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3, "quick_gelu": 4, "gelu_tanh": 5}


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
    values, bits = checked_values(matrix, kernel), matrix.positions.bits()
    check_bits(bits, shape, f"{kernel} kernel")
    return values, bits.contiguous()


def checked_values(matrix: SparseMatrix, kernel: str) -> torch.Tensor:
    """Kept values alone."""
    values = matrix.floats()
    if values.dtype is not torch.float32 or values.device.type != "cpu":
        raise KernelError(
            f"{kernel} kernel: values must be float32 on the CPU, got {values.dtype} on"
            f" {values.device}. Convert with .float(), or keep the layer in mode 'jit'."
        )
    return values.detach().contiguous()


def float_array(values: torch.Tensor) -> "_native.FloatArray":
    """A tensor as native code takes it: float32, without gaps."""
    return values.detach().float().contiguous().numpy()


def optional_array(values: torch.Tensor | None) -> "_native.FloatArray | None":
    """`float_array`, and None for None."""
    return None if values is None else float_array(values)


def refusal(where: str, x: torch.Tensor, activation: str, wrong_shape: str) -> InputError:
    """What is wrong with unusable arguments; `wrong_shape` is empty where the shape fits."""
    if activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        return InputError(f"{where}: activation must be one of {names}; got {activation!r}.")
    if x.dtype is not torch.float32 or not x.is_cpu or x.layout is not torch.strided:
        return InputError(
            f"{where}: x must be a dense float32 tensor on the CPU, got {x.dtype} on"
            f" {x.device}. Convert it with x.float().cpu(), or run the uncompiled model."
        )
    return InputError(f"{where}: {wrong_shape or NO_GRADIENTS}")
