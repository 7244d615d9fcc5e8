# SPDX-License-Identifier: Apache-2.0
"""Why a module stayed what it was, though modules like it were replaced: a note for `explain`.

`leave` notes the reason in the module itself, under the attribute `LEFT`.
"""

from torch import nn

__all__ = [
    "LEFT",
    "leave",
]

LEFT = "_gossamer_left"


def leave(module: nn.Module, reason: str) -> None:
    """Leave on a module why it stayed what it was, for `explain`."""
    module.__dict__[LEFT] = reason
