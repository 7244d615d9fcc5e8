# SPDX-License-Identifier: Apache-2.0
"""Operations on sparse weights: native kernels, and who runs what.

Each operation has one list of kernels. Describe a weight as a `Problem` and ask `kernels_for`; a
`Kernel` packs it once into what is called. `linear` and `conv` hold the kernels, `engines` whole
models in one native call, `training` products with gradients. Work that falls back to dense is
counted (`fallbacks`), and is an error under `strict`. Names are loaded on first use: the command
line asks for `out_of_memory.py` without torch.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.ops.dispatch import (
        Kernel,
        Problem,
        fallbacks,
        kernel_list,
        kernels_for,
        report_fallback,
        strict,
    )
    from gossamer.ops.kernels import active_kernels

__all__ = [
    "Kernel",
    "Problem",
    "active_kernels",
    "fallbacks",
    "kernel_list",
    "kernels_for",
    "report_fallback",
    "strict",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "Kernel": "dispatch",
        "Problem": "dispatch",
        "active_kernels": "kernels",
        "fallbacks": "dispatch",
        "kernel_list": "dispatch",
        "kernels_for": "dispatch",
        "report_fallback": "dispatch",
        "strict": "dispatch",
    },
)
