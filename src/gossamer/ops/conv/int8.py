# SPDX-License-Identifier: Apache-2.0
"""The native int8 convolution with sparse weights: fp32 images in and out, int8 inside.

Weights get one scale per output channel, activations one per image of the batch, measured in the
call over all its channels; sums are exact integers, and so are zeros around an image. Lossy: runs
only where the user asked for int8.

An image that holds a NaN or an infinity gives NaN in its whole output; an image whose values are
all below 2^-120 counts as zero.
"""

from gossamer.errors import KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.conv.fp32 import PackedConv
from gossamer.ops.conv.settings import ConvSettings
from gossamer.ops.linear import ACTIVATION_BITS, MAX_COLUMNS


class PackedInt8Conv(PackedConv):
    """`act(conv2d(x, W) + bias)` in int8 arithmetic; see PackedConv.

    Args:
        matrix: the weight seen as [R, K], finite float32 on the CPU.
        settings: sizes, stride, padding, dilation and groups; K is at most 131072.
        activation_bits: 7 or 8; None takes what the instruction set does best: 8 with VNNI and in
            the reference, else 7. Results are the same bits for equal numbers.
    """

    kernel = "conv_int8"
    _packer = staticmethod(_native.pack_int8_conv)

    def __init__(
        self,
        matrix: SparseMatrix,
        settings: ConvSettings,
        activation_bits: int | None = None,
    ) -> None:
        if activation_bits is not None and activation_bits not in ACTIVATION_BITS:
            raise KernelError(
                f"conv_int8 kernel: activation_bits must be 7, 8 or None, got {activation_bits!r}."
            )
        super().__init__(matrix, settings)
        self._options = {"activation_bits": activation_bits or 0}

    @staticmethod
    def weight_fault(settings: ConvSettings, matrix: SparseMatrix) -> str | None:
        """Sums must fit, and values must be finite."""
        if settings.matrix_shape[1] > MAX_COLUMNS:
            return (
                f"at most {MAX_COLUMNS} weights of an output channel fit the 32-bit sums, got"
                f" {settings.matrix_shape[1]}"
            )
        if not bool(matrix.values.isfinite().all()):
            return "values must be finite, found NaN or infinity; they have no int8 scale"
        return None
