# SPDX-License-Identifier: Apache-2.0
"""Convolutions with sparse weights for inference: fp32 and int8, any mask, images of any size.

Start with `ConvSettings`, what a convolution is besides its weight, and `PackedConv`, a weight that
is ready to run; `why_not` says what the kernels cannot take. Importing this room lists both kernels
under the operation "conv".
"""

from gossamer.ops.conv.fp32 import PackedConv, why_not
from gossamer.ops.conv.int8 import PackedInt8Conv
from gossamer.ops.conv.settings import ConvSettings, Pair
from gossamer.ops.dispatch import Kernel, add_kernels


def _kernel(packed: type[PackedConv], precision: str) -> Kernel:
    return Kernel(
        packed.kernel,
        lambda problem: packed(problem.matrix, problem.geometry),
        lambda problem: packed.fault(problem.geometry, problem.matrix) is None,
        precision,
    )


add_kernels("conv", (_kernel(PackedConv, "fp32"), _kernel(PackedInt8Conv, "int8")))

__all__ = ["ConvSettings", "PackedConv", "Pair", "why_not"]
