# SPDX-License-Identifier: Apache-2.0
"""Convolutions with sparse weights for inference: fp32 and int8, any mask, images of any size.

Start with `ConvSettings`, what a convolution is besides its weight, and `PackedConv`, a weight that
is ready to run; `why_not` says what the kernels cannot take. Importing this room lists both kernels
under the operation "conv".
"""

from gossamer.ops.conv.net_weight import NetWeight, fits_net, positions_of
from gossamer.ops.conv.packed_conv import PackedConv, PackedInt8Conv, why_not
from gossamer.ops.conv.settings import ConvSettings, Pair
from gossamer.ops.dispatch import Kernel, Problem, add_kernels


def _kernel(packed: type[PackedConv], precision: str) -> Kernel:
    def accepts(problem: Problem) -> bool:
        given = problem.geometry, problem.matrix
        if problem.engine:
            return fits_net(problem) and packed.weight_fault(*given) is None
        return packed.fault(*given) is None

    def pack(problem: Problem) -> PackedConv:
        return packed(problem.matrix, problem.geometry)

    return Kernel(packed.kernel, pack, accepts, precision, engines={"conv_net": NetWeight})


add_kernels("conv", (_kernel(PackedConv, "fp32"), _kernel(PackedInt8Conv, "int8")))

__all__ = ["ConvSettings", "NetWeight", "PackedConv", "Pair", "positions_of", "why_not"]
