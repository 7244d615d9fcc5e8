# SPDX-License-Identifier: Apache-2.0
"""Native int8 kernels for many tokens: fp32 in and out, int8 weights and activations inside.

Weights get one scale per output row, activations one per token (or one given when packing); sums
are exact integers. Lossy: runs only where the user asked for int8.

A token that holds a NaN or an infinity gives NaN in its whole output row; a token whose values are
all below 2^-120 counts as zero.
"""

import functools
from collections.abc import Callable
from typing import Literal

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel, Problem
from gossamer.ops.linear.packed_weight import PackedWeight, pack_encoder_weight, pack_weight
from gossamer.patterns import Block

Layout = Literal["panel", "quad"]
LAYOUTS: tuple[Layout, ...] = ("panel", "quad")
ACTIVATION_BITS = (7, 8)
MAX_COLUMNS = 1 << 17  # 127 * 127 * columns stays below 2^31
# Four neighbours with one weight kept cost the quad kernel as much as with four; it does 1.6 times
# the products of the panel kernel per second.
_QUAD_DENSITY = 0.6


class Int8Weight(PackedWeight):
    """A weight packed by `pack_int8`."""

    _native: _native.Int8Weight

    @property
    def activation_bits(self) -> int:
        """Bits of a quantised activation, 7 or 8: results are the same bits for equal numbers."""
        return self._native.activation_bits

    @property
    def activation_scale(self) -> float | None:
        """The scale of all activations, or None if every token gets its own."""
        return self._native.activation_scale or None


def pack_int8(
    matrix: SparseMatrix,
    layout: Layout = "panel",
    activation_bits: int | None = None,
    activation_scale: float | None = None,
) -> Int8Weight:
    """Quantise and pack the kept values of a weight.

    Args:
        matrix: finite float32 on the CPU, at most 131072 columns.
        layout: "panel" is for any mask; "quad" for masks whose zeros come in aligned groups of
            four columns, such as block:RxC with C divisible by 4, and for dense weights.
        activation_bits: 7 or 8; None takes what the instruction set does best: 8 with VNNI and in
            the reference, else 7.
        activation_scale: what one step of a quantised activation is worth, for every token;
            larger activations are clamped. None measures each token.
    """
    if layout not in LAYOUTS:
        raise KernelError(f"int8 kernel: layout must be 'panel' or 'quad', got {layout!r}.")
    if activation_bits is not None and activation_bits not in ACTIVATION_BITS:
        raise KernelError(
            f"int8 kernel: activation_bits must be 7, 8 or None, got {activation_bits!r}."
        )
    if activation_scale is not None and not 2.0**-120 <= activation_scale <= 2.0**120:
        raise KernelError(
            "int8 kernel: activation_scale must be between 2^-120 and 2^120, or None for one scale"
            f" per token; got {activation_scale!r}."
        )
    if matrix.shape[1] > MAX_COLUMNS:
        raise KernelError(
            f"int8 kernel: at most {MAX_COLUMNS} columns fit the 32-bit sums, got"
            f" {matrix.shape[1]}. Keep this layer in fp32."
        )
    if not bool(matrix.values.isfinite().all()):
        raise KernelError(
            "int8 kernel: values must be finite, found NaN or infinity; they have no int8 scale."
        )
    packed = pack_weight(
        f"int8_{layout}",
        _native.pack_int8,
        matrix,
        layout=layout,
        activation_bits=activation_bits or 0,
        activation_scale=activation_scale or 0.0,
    )
    return Int8Weight(packed._native, packed.kernel)


def _fits(problem: Problem) -> bool:
    return bool(problem.matrix.shape[1] <= MAX_COLUMNS)


def _has_quads(problem: Problem) -> bool:
    if problem.engine:
        # Nothing is raced there: half of what the quads hold must be kept.
        bits = problem.matrix.positions.bits()
        quads = int(((bits & 15) != 0).sum() + ((bits & 240) != 0).sum())
        return _fits(problem) and quads * 2 < problem.matrix.nnz
    pattern = problem.matrix.pattern
    in_fours = isinstance(pattern, Block) and pattern.columns % 4 == 0
    return _fits(problem) and (in_fours or problem.matrix.density >= _QUAD_DENSITY)


def _kernel(layout: Layout, accepts: Callable[[Problem], bool]) -> Kernel:
    pack = functools.partial(pack_int8, layout=layout)
    inside = {"encoder": functools.partial(pack_encoder_weight, int8_layout=layout)}
    return Kernel.of_matrix(f"int8_{layout}", pack, accepts, "int8", engines=inside)


KERNELS = (_kernel("panel", _fits), _kernel("quad", _has_quads))
