# SPDX-License-Identifier: Apache-2.0
"""Native bf16 kernels for many tokens: fp32 in and out, bf16 weights and activations inside.

Both are rounded to nearest, ties to even; products are added in fp32. Lossy: runs only where the
user allowed bf16, and is offered only where the CPU has vdpbf16ps, which does two products and
their sum at once. Elsewhere it is correct, but `panel-bf16` (bf16 weights, fp32 arithmetic) is
faster. It was never timed on such a CPU.

vdpbf16ps takes denormals for zeros and every kernel set adds in its own order, so the results of
two sets agree within rounding, not in bits.
"""

import functools
from collections.abc import Callable
from typing import Literal

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.kernels import active_kernels, available_extensions
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns import Block

Form = Literal["panel", "pair"]
FORMS: tuple[Form, ...] = ("panel", "pair")
# Two neighbours with one weight kept cost the pair form as much as with two. Where it would do more
# than 1.25 times the products of the panel form, it is not worth a measurement.
_PAIR_DENSITY = 0.75


def pack_bf16(matrix: SparseMatrix, form: Form = "panel") -> PackedWeight:
    """Round and pack the kept values of a weight.

    Args:
        matrix: float32 on the CPU.
        form: "panel" is for any mask; "pair" for masks whose zeros come in aligned pairs of
            columns, such as block:RxC with even C, and for dense weights.
    """
    if form not in FORMS:
        raise KernelError(f"bf16 kernel: form must be 'panel' or 'pair', got {form!r}.")
    return pack_weight(f"bf16_{form}", _native.pack_bf16, matrix, form=form)


def has_bf16_instructions() -> bool:
    """Whether the active kernel set multiplies bf16 pairs in hardware."""
    return active_kernels() == "avx512" and "avx512bf16" in available_extensions()


def _has_pairs(problem: Problem) -> bool:
    pattern = problem.matrix.pattern
    comes_in_pairs = isinstance(pattern, Block) and pattern.columns % 2 == 0
    return comes_in_pairs or problem.matrix.density >= _PAIR_DENSITY


def _kernel(form: Form, accepts: Callable[[Problem], bool]) -> Kernel:
    pack = functools.partial(pack_bf16, form=form)
    return Kernel.of_matrix(f"bf16_{form}", pack, accepts, "bf16", is_offered=has_bf16_instructions)


KERNELS = (_kernel("panel", lambda problem: True), _kernel("pair", _has_pairs))
