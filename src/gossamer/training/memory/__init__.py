# SPDX-License-Identifier: Apache-2.0
"""What training holds in memory: as formulas (`StateCost`, `VARIANTS`), and counted (`measure`).

The formulas need no torch; `measure` is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name == "measure":
        from gossamer.training.memory.held import measure

        return measure
    raise AttributeError(f"module 'gossamer.training.memory' has no attribute {name!r}")
