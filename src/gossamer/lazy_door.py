# SPDX-License-Identifier: Apache-2.0
"""Doors of packages whose names are loaded on first use, so that importing them is free of torch.

A package says `__getattr__, __dir__ = lazy_door(__name__, homes)`, and imports the same names
under `TYPE_CHECKING` for type checkers. `LateModule` does the same for one module of others.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_door(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        homes: public name -> module that holds it, relative to the package. A submodule that is
            public itself has itself as its home.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{home}")
        return module if home == name else getattr(module, name)

    return load, lambda: list(homes)


class LateModule:
    """A module that is imported once a name of it is asked for.

    Args:
        name: of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # found at once from now on
        return value
