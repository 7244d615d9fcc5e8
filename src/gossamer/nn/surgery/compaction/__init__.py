# SPDX-License-Identifier: Apache-2.0
"""Masks are fixed in the middle of a run: `compact`; the state of the optimizer is carried along.

Names are loaded on first use: layers need the part for optimizers, and `compact` needs the layers.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.nn.surgery.compaction.fixing import CompactionResult, compact
    from gossamer.nn.surgery.compaction.optimizer_state import (
        Convert,
        Part,
        check_state,
        convert_state,
    )

__all__ = ["CompactionResult", "Convert", "Part", "check_state", "compact", "convert_state"]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "CompactionResult": "fixing",
        "Convert": "optimizer_state",
        "Part": "optimizer_state",
        "check_state": "optimizer_state",
        "compact": "fixing",
        "convert_state": "optimizer_state",
    },
)
