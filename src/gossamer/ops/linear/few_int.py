# SPDX-License-Identifier: Apache-2.0
"""The integer kernel for few tokens: int8 or int4 weights, activations quantised inside the call.

Any mask, at one bit per weight, or none. Where the CPU expands bytes by a mask (avx512vbmi2) the
bytes of the weight are what a call costs; with AVX2 that holds for weights without a mask, and
masks cost the same at any density. Other CPUs run the reference, and `ops/linear/few.py` is faster.
"""

import functools

import torch

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.kernels import active_kernels, available_extensions
from gossamer.ops.linear.few import MAX_TOKENS, TABLE, smallest_form
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight

DTYPES = ("int8", "int4")


def pack_few_int(matrix: SparseMatrix, dtype: str = "int8", scale_group: int = 32) -> PackedWeight:
    """A weight rounded to `dtype`; where everything is kept, no mask is stored.

    Args:
        matrix: float32 on the CPU, finite.
        dtype: "int8" (one scale per row) or "int4".
        scale_group: int4: kept values that share a scale, about; it serves whole runs of 64
            columns.
    """
    try:
        options = {"dtype": dtype, "scale_group": scale_group}
        return pack_weight(
            kernel_name(dtype), _native.pack_few_int, matrix, all_kept=True, **options
        )
    except ValueError as error:
        raise KernelError(f"few_int kernel: {error}.") from error


def pack_few_int_offsets(
    codes_RK: torch.Tensor, scales_RG: torch.Tensor, offsets_RG: torch.Tensor, group: int
) -> PackedWeight:
    """An int4 weight on a grid with offsets (`formats/grid/offset_grid.py`), without a mask.

    Args:
        codes_RK: 0 to 15.
        scales_RG: float16, finite, as the offsets.
        offsets_RG: of every group.
        group: columns of a group, 32 or a multiple of 64.
    """
    for name, halves in (("scales", scales_RG), ("offsets", offsets_RG)):
        if halves.dtype is not torch.float16:
            raise KernelError(f"few_int kernel: {name} must be float16, got {halves.dtype}.")
    try:
        native = _native.pack_few_int_offsets(
            codes_RK.to(torch.uint8).contiguous().numpy(),
            scales_RG.contiguous().view(torch.uint16).numpy(),
            offsets_RG.contiguous().view(torch.uint16).numpy(),
            group=group,
            kernels=active_kernels(),
        )
    except ValueError as error:
        raise KernelError(f"few_int kernel: {error}.") from error
    return PackedWeight(native, f"{kernel_name('int4')}_offset")


def kernel_name(dtype: str) -> str:
    """As `explain` shows it."""
    return f"few_int-{dtype}"


def is_native() -> bool:
    """Whether more than the reference runs here."""
    return active_kernels() in ("avx2", "avx512")


def expands_masks() -> bool:
    """Whether there is an instruction for masks, so that zeros save time, too."""
    return active_kernels() == "avx512" and "avx512vbmi2" in available_extensions()


def _accepts(problem: Problem) -> bool:
    # Without that instruction, fixed positions and few kept weights are better off with floats.
    return not problem.engine or expands_masks() or smallest_form(problem) == "bitmask"


def _pack(dtype: str, problem: Problem) -> PackedWeight:
    return pack_few_int(problem.matrix, dtype, problem.scale_group)


def _kernel(dtype: str) -> Kernel:
    pack = functools.partial(_pack, dtype)
    return Kernel(
        kernel_name(dtype),
        pack,
        _accepts,
        dtype,
        MAX_TOKENS,
        is_offered=is_native,
        engines=dict.fromkeys(("decoder", TABLE), pack),
    )


KERNELS: tuple[Kernel, ...] = tuple(map(_kernel, DTYPES))
