# SPDX-License-Identifier: Apache-2.0
"""A failed allocation of torch in a call of gossamer is a ResourceError.

Allocations of native code are so already (native/bind/module.cpp).
"""

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gossamer.errors import ResourceError

P = ParamSpec("P")
R = TypeVar("R")

_ASKED = re.compile(r"(?:allocate|allocation of) (\d+) bytes")
# torch raises plain RuntimeErrors: the first text for elements, the second for all else.
_TEXTS = ("can't allocate memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error tells of a failed allocation."""
    if isinstance(error, ResourceError):
        return "out of memory" in str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
    )


def memory_error(error: BaseException, where: str, advice: str) -> ResourceError:
    """What to raise for a failed allocation: where it was, its size and what to do."""
    asked = _ASKED.search(str(error))
    size = f" of {asked[1]} bytes" if asked else ""
    return ResourceError(f"{where}: out of memory, an allocation{size} failed. {advice}")


def names_memory(
    where: str, advice: str = "Run fewer tokens or images at a time, or free memory."
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a failed allocation in a function be a ResourceError that begins with `where`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def named(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise memory_error(error, where, advice) from error

        return named

    return decorate
