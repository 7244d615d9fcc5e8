# SPDX-License-Identifier: Apache-2.0
"""An allocation that fails says in which phase, and how much was asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from gossamer.errors import ResourceError
from gossamer.ops.out_of_memory import is_out_of_memory, memory_error


@contextmanager
def memory_for(phase: str, advice: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into ResourceError.

    Args:
        phase: what is being done, for the message.
        advice: what to make smaller.
    """
    try:
        yield
    except (MemoryError, RuntimeError, ResourceError) as error:
        if not is_out_of_memory(error):
            raise
        raise memory_error(error, phase, advice) from error
