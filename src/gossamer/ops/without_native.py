# SPDX-License-Identifier: Apache-2.0
"""What stands for the native module in an install that was built without it.

Wheels for platforms without kernels, and builds on machines without a compiler, hold Python alone.
Everything that has a form in torch runs in it then: masks, compact training, files, tables, dense
products in the place of compiled ones. What has none says what is missing when it is asked for.
"""

import functools
import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

from gossamer.errors import KernelError

__all__ = ["find_native", "warn_missing", "why_missing"]

_NAME = "gossamer.ops._native"
_ADVICE = (
    "On x86-64 Linux a wheel brings it: pip install --force-reinstall gossamer; elsewhere"
    " install a C++17 compiler first. `gossamer doctor` says whether it is there."
)
_reason: str | None = None


def why_missing() -> str | None:
    """Why there is no native module; None if there is one."""
    return _reason


@functools.cache
def warn_missing() -> bool:
    """Say once that kernels are missing; gives False."""
    text = f"gossamer has no kernels here: {_reason}. Layers stay dense and run in torch. {_ADVICE}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return False


def find_native() -> None:
    """Load the native module, or put a stand-in in its place."""
    global _reason
    try:
        importlib.import_module(_NAME)
    except ModuleNotFoundError:
        _reason = "this install was built without the native module"
    except ImportError as error:
        _reason = f"the native module of this install cannot be loaded ({error})"
    if _reason is not None:
        sys.modules[_NAME] = stand_in = _Missing(_NAME)
        sys.modules["gossamer.ops"].__dict__["_native"] = stand_in


class _Missing(ModuleType):
    """A module whose every name is a class that cannot be made; classes also serve annotations."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": _refuse})
        setattr(self, name, made)
        return made

    @staticmethod
    def available_kernels() -> tuple[str, ...]:
        return ()

    @staticmethod
    def available_extensions() -> tuple[str, ...]:
        return ()

    @staticmethod
    def drop_results() -> None:
        """None are held."""


def _refuse(self: object, *args: object, **options: object) -> None:
    raise KernelError(f"{type(self).__name__}: {_reason}, and torch has no form of it. {_ADVICE}")
