# SPDX-License-Identifier: Apache-2.0
"""Sparse neural networks that are really smaller and faster.

Names are loaded on first use: importing gossamer does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that holds it. A submodule is given as itself.
_HOMES = {
    "attach": "gossamer.recipes.attach",
    "plan": "gossamer.planner.planning",
    "shrink": "gossamer.search.shrinking",
    "sparsify": "gossamer.recipes.oneshot",
    "compact": "gossamer.train.compaction",
    "compile": "gossamer.run.compiler",
    "explain": "gossamer.run.explanation",
    "save": "gossamer.io.writer",
    "load": "gossamer.io.reader",
    "strict": "gossamer.ops.dispatch",
    "errors": "gossamer.errors",
    "nn": "gossamer.nn",
    "register": "gossamer.register",
    "testing": "gossamer.testing",
}

__all__ = [
    "attach",
    "compact",
    "compile",
    "errors",
    "explain",
    "load",
    "nn",
    "plan",
    "register",
    "save",
    "shrink",
    "sparsify",
    "strict",
    "testing",
]

if TYPE_CHECKING:
    from gossamer import errors, nn, register, testing
    from gossamer.io.reader import load
    from gossamer.io.writer import save
    from gossamer.ops.dispatch import strict
    from gossamer.planner.planning import plan
    from gossamer.recipes.attach import attach
    from gossamer.recipes.oneshot import sparsify
    from gossamer.run.compiler import compile
    from gossamer.run.explanation import explain
    from gossamer.search.shrinking import shrink
    from gossamer.train.compaction import compact


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    module = importlib.import_module(home)
    return module if home == f"gossamer.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
