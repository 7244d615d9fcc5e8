# SPDX-License-Identifier: Apache-2.0
"""Native bf16 kernels for many tokens: fp32 in and out, bf16 weights and activations inside.

Both are rounded to nearest, ties to even; products are added in fp32. Lossy: runs only where the
user allowed bf16, and is offered only where the CPU has vdpbf16ps, which does two products and
their sum at once. Elsewhere it is correct, but `panel-bf16` (bf16 weights, fp32 arithmetic) is
faster. It was never timed on such a CPU.

vdpbf16ps takes denormals for zeros and every kernel set adds in its own order, so the results of
two sets agree within rounding, not in bits.
"""

from typing import Literal

import torch

from gossamer.errors import KernelError
from gossamer.formats.base import SparseTensor
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel
from gossamer.ops.kernels import active_kernels, available_extensions
from gossamer.ops.linear.canonical import canonical
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns.block import Block

Form = Literal["panel", "pair"]
FORMS: tuple[Form, ...] = ("panel", "pair")
# Two neighbours with one weight kept cost the pair form as much as with two. Where it would do more
# than 1.25 times the products of the panel form, it is not worth a measurement.
_PAIR_DENSITY = 0.75


def pack_bf16(
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    shape: tuple[int, int],
    form: Form = "panel",
) -> PackedWeight:
    """Round and pack the kept values of a [R, K] weight.

    Args:
        values: row-major kept values, float32 on the CPU.
        mask_bits: packed mask [R, ceil(K/8)].
        shape: (R, K).
        form: "panel" is for any mask; "pair" for masks whose zeros come in aligned pairs of
            columns, such as block:RxC with even C, and for dense weights.
    """
    if form not in FORMS:
        raise KernelError(f"bf16 kernel: form must be 'panel' or 'pair', got {form!r}.")
    return pack_weight(f"bf16_{form}", _native.pack_bf16, values, mask_bits, shape, form=form)


def has_bf16_instructions() -> bool:
    """Whether the active kernel set multiplies bf16 pairs in hardware."""
    return active_kernels() == "avx512" and "avx512bf16" in available_extensions()


def _has_pairs(sparse: SparseTensor) -> bool:
    pattern, (num_rows, num_columns) = sparse.pattern, sparse.shape
    comes_in_pairs = isinstance(pattern, Block) and pattern.columns % 2 == 0
    is_full = sparse.nnz >= _PAIR_DENSITY * num_rows * num_columns
    return comes_in_pairs or is_full


KERNELS = (
    Kernel(
        "bf16_panel",
        lambda sparse: True,
        lambda sparse: pack_bf16(*canonical(sparse)),
        "bf16",
        is_offered=has_bf16_instructions,
    ),
    Kernel(
        "bf16_pair",
        _has_pairs,
        lambda sparse: pack_bf16(*canonical(sparse), "pair"),
        "bf16",
        is_offered=has_bf16_instructions,
    ),
)
