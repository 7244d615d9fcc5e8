# SPDX-License-Identifier: Apache-2.0
"""Operations on sparse weights: native kernels, and who runs what.

Each operation has one list of kernels. Describe a weight as a `Problem` and ask `kernels_for`; a
`Kernel` packs it once into what is called. Work that falls back to dense is counted (`fallbacks`),
and is an error under `strict`. `linear` and `conv` hold the kernels, `engines` whole models in one
native call, `training` products with gradients; `kernels` says which sets of them this machine
runs, `timing` which is faster, `calls` how torch gets to see them.
"""

from gossamer.ops.addresses import direct_address
from gossamer.ops.dispatch import (
    PRECISIONS,
    Kernel,
    Problem,
    Run,
    fallbacks,
    kernel_list,
    kernels_for,
    report_fallback,
    report_missing,
    strict,
)

__all__ = [
    "PRECISIONS",
    "Kernel",
    "Problem",
    "Run",
    "direct_address",
    "fallbacks",
    "kernel_list",
    "kernels_for",
    "report_fallback",
    "report_missing",
    "strict",
]
