# SPDX-License-Identifier: Apache-2.0
"""Numbers that stand for packed weights in graphs.

Custom ops take tensors and numbers only, so a packed weight goes through them as a number. A graph
can outlive its model, be saved, and be loaded in another process: a number must never come to mean
something else. So numbers are counted, never taken from addresses, and each process starts at a
random place. The table keeps nothing alive: a graph whose model is gone is told so.
"""

import itertools
import os
import secrets
import weakref
from typing import Generic, TypeVar

from gossamer.errors import KernelError

T = TypeVar("T")

_START_BITS = 62  # numbers are int64 in a graph; counting on from here cannot overflow
_numbers = itertools.count(secrets.randbits(_START_BITS))


def _start_elsewhere() -> None:
    global _numbers
    _numbers = itertools.count(secrets.randbits(_START_BITS))


# Else parent and child would go on to give the same numbers to different things.
os.register_at_fork(after_in_child=_start_elsewhere)


class Handles(Generic[T]):
    """Things of one kind by their numbers, for as long as somebody else holds them.

    Args:
        what: names the op in the error of `find`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._things: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, thing: T) -> int:
        """A number that no other thing has had or will have."""
        number = next(_numbers)
        self._things[number] = thing
        return number

    def find(self, number: int) -> T:
        """What a number stands for; KernelError if it is gone or was of another process."""
        thing = self._things.get(number)
        if thing is None:
            raise KernelError(
                f"{self._what}: what this graph stands for no longer exists: its compiled model"
                " is gone, or was in another process. A graph does not hold packed weights. Keep"
                " the compiled model as long as the graph; to go to another process, save it with"
                " gossamer.save, and load and compile it there, or export the compact model."
            )
        return thing
