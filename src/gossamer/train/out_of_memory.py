# SPDX-License-Identifier: Apache-2.0
"""An allocation that fails says in which phase, and how much was asked for."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gossamer.errors import ResourceError

_ASKED = re.compile(r"allocate (\d+) bytes")


@contextmanager
def memory_for(phase: str, advice: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into ResourceError.

    Args:
        phase: what is being done, for the message.
        advice: what to make smaller.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch's CPU allocator raises a plain RuntimeError.
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        asked = _ASKED.search(str(error))
        size = f" of {asked[1]} bytes" if asked else ""
        raise ResourceError(
            f"{phase}: out of memory, an allocation{size} failed. {advice}"
        ) from error
