# SPDX-License-Identifier: Apache-2.0
"""Convolutions with sparse weights for inference: fp32 and int8, any mask, images of any size.

Start with `ConvSettings`, what a convolution is besides its weight, and `PackedConv`, a weight that
is ready to run; `why_not` says what the kernels cannot take. Importing this room lists both kernels
under the operation "conv".
"""

from typing import Any

from gossamer.ops.conv import fp32, int8
from gossamer.ops.conv.fp32 import PackedConv, why_not
from gossamer.ops.conv.settings import ConvSettings, Pair
from gossamer.ops.dispatch import Kernel, Problem, add_kernels


def _settings(problem: Problem) -> ConvSettings:
    settings: Any = problem.geometry
    return settings  # type: ignore[no-any-return]


add_kernels(
    "conv",
    (
        Kernel(
            fp32.KERNEL,
            lambda problem: PackedConv(problem.matrix, _settings(problem)),
            lambda problem: fp32.why_not(_settings(problem)) is None,
        ),
        Kernel(
            int8.KERNEL,
            lambda problem: int8.PackedInt8Conv(problem.matrix, _settings(problem)),
            lambda problem: int8.why_not(_settings(problem), problem.matrix) is None,
            "int8",
        ),
    ),
)

__all__ = ["ConvSettings", "PackedConv", "Pair", "why_not"]
