# SPDX-License-Identifier: Apache-2.0
"""Large results, in memory that the process already has.

malloc of glibc gives arrays of more than 32 MB back to the system as soon as they are freed, and
the next step has to find their pages again. With `GOSSAMER_KEEP_MEMORY=on` the first large result tells
malloc to keep up to 2 GB of freed memory, for the whole process. It is off by default: aligned
arrays of torch do not always fit the place of a freed one of their size, so memory can grow.
"""

import functools

from torch import Tensor

from gossamer.ops import _native
from gossamer.settings import keeps_memory

__all__ = ["new_result"]

# Bytes; smaller arrays are kept by malloc anyway.
_LARGE = 32 << 20


@functools.cache
def _keep_memory() -> bool:
    return keeps_memory() and _native.graph_keep_memory()


def new_result(like: Tensor, rows: int, width: int) -> Tensor:
    """A float tensor [rows, width] that is not filled."""
    if rows * width * like.element_size() >= _LARGE:
        _keep_memory()
    return like.new_empty(rows, width)
