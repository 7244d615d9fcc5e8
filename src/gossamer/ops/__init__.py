# SPDX-License-Identifier: Apache-2.0
"""Operations on sparse weights: native kernels, and who runs what.

Each operation has one list of kernels (`kernel_list`). Describe a weight as a `Problem` and ask
`kernels_for`; a `Kernel` packs it once into what is called, a `Run`, in one of the `PRECISIONS`.
What no kernel runs is reported (`report_missing`), and is an error under `strict`.

`linear` and `conv` hold the kernels, `engines` whole models in one native call, `training` products
with gradients; `kernels` says which sets of them this machine runs, `timing` which is faster,
`calls` how torch gets to see them, `addresses` whether they may read a tensor's memory, `fallback`
what ran dense instead, `without_native` what an install without native module does.
"""

import torch  # noqa: F401  (first: the native module must join torch's OpenMP pool, not load another)

from gossamer.ops.without_native import find_native

find_native()

from gossamer.ops.dispatch import (  # noqa: E402  (kernels are listed where the module is known)
    PRECISIONS,
    Kernel,
    Problem,
    Run,
    kernel_list,
    kernels_for,
    report_missing,
)
from gossamer.ops.fallback import strict  # noqa: E402

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
