# SPDX-License-Identifier: Apache-2.0
"""What training holds in memory: as formulas (`StateCost`, `VARIANTS`), and counted (`measure`).

The formulas need no torch; `measure` is loaded on first use.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door
from gossamer.training.memory.formulas import (
    KINDS,
    MASK_BYTES,
    VARIANTS,
    Kind,
    StateCost,
    dense_cost,
    moment_bytes,
    state_cost,
)

if TYPE_CHECKING:
    from gossamer.training.memory.held import measure

__all__ = [
    "KINDS",
    "MASK_BYTES",
    "VARIANTS",
    "Kind",
    "StateCost",
    "dense_cost",
    "measure",
    "moment_bytes",
    "state_cost",
]

__getattr__ = lazy_door(__name__, {"measure": "held"})[0]
