# SPDX-License-Identifier: Apache-2.0
"""One small table type behind the plug-in axes: patterns, scorers, formats and ops."""

import difflib
from collections.abc import Iterator
from typing import Generic, TypeVar

from gossamer.errors import RegistryError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to implementations, closed to strings found in files: nothing is imported by name.

    Args:
        axis: what is registered here, for messages ("scorer", "format", ...).
        stub: source text that a user can paste and fill in, with `{name}` where the name goes.
    """

    def __init__(self, axis: str, stub: str) -> None:
        self._axis = axis
        self._stub = stub
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        """Register `item`; a name can be taken only once."""
        if name in self._items:
            raise RegistryError(
                f"{self._axis} {name!r} is registered already; choose another name."
            )
        self._items[name] = item
        return item

    def remove(self, name: str) -> None:
        """Forget a plug-in, as tests and notebooks that re-run a cell need."""
        self._items.pop(name, None)

    def get(self, name: str) -> T:
        """The item called `name`; a miss raises an error that holds the stub to write."""
        if name in self._items:
            return self._items[name]
        near = difflib.get_close_matches(name, self._items, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise RegistryError(
            f"no {self._axis} is called {name!r}.{hint} Registered: {', '.join(self._items)}."
            f" To add one:\n\n{self._stub.replace('{name}', name)}"
        )

    def names(self) -> list[str]:
        """Registered names in order of registration."""
        return list(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())
