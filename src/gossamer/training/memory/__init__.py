# SPDX-License-Identifier: Apache-2.0
"""What training holds in memory: counted (`measure`), and as formulas that need no torch.

`measure` counts the bytes of weights, gradients, moments and masks; `formulas` say what they will
be. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.training.memory.held import measure

__all__ = ["measure"]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "measure": "held",
    },
)
