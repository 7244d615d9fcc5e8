# SPDX-License-Identifier: Apache-2.0
"""Operations on sparse weights: native kernels, and who runs what.

Each operation has one list of kernels (`kernel_list`). Describe a weight as a `Problem` and ask
`kernels_for`; a `Kernel` packs it once into what is called, a `Run`, in one of the `PRECISIONS`.
What no kernel runs is reported (`report_missing`), and is an error under `strict`.

`linear` and `conv` hold the kernels, `engines` whole models in one native call, `training` products
with gradients; `kernels` says which sets of them this machine runs, `timing` which is faster,
`calls` how torch gets to see them, `addresses` whether they may read a tensor's memory, `fallback`
what ran dense instead, `openmp` whose threads run kernels, `without_native` what an install without
native module does.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door
from gossamer.ops.openmp import join_torch
from gossamer.ops.without_native import find_native

join_torch()
find_native()

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "PRECISIONS": "dispatch",
        "Kernel": "dispatch",
        "Problem": "dispatch",
        "Run": "dispatch",
        "kernel_list": "dispatch",
        "kernels_for": "dispatch",
        "report_missing": "dispatch",
        "strict": "fallback",
    },
)
