# SPDX-License-Identifier: Apache-2.0
"""Operations on sparse weights: native kernels, and who runs what.

Each operation has one list of kernels (`kernel_list`). Describe a weight as a `Problem` and ask
`kernels_for`; a `Kernel` packs it once into what is called, a `Run`, in one of the `PRECISIONS`.
What no kernel runs is reported (`report_missing`), and is an error under `strict`.

`linear` and `conv` hold the kernels, `engines` whole models in one native call, `training` products
with gradients; `kernels` says which sets of them this machine runs, `timing` which is faster,
`calls` how torch gets to see them, `addresses` whether they may read a tensor's memory, `fallback`
what ran dense instead.
"""

from gossamer.ops.dispatch import (
    PRECISIONS,
    Kernel,
    Problem,
    Run,
    kernel_list,
    kernels_for,
    report_missing,
)
from gossamer.ops.fallback import strict

__all__ = [
    "PRECISIONS",
    "Kernel",
    "Problem",
    "Run",
    "kernel_list",
    "kernels_for",
    "report_missing",
    "strict",
]
