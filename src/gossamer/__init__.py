# SPDX-License-Identifier: Apache-2.0
"""Sparse neural networks that are really smaller and faster.

Names are loaded on first use: importing gossamer does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that holds it. A submodule is given as itself.
_HOMES = {
    "attach": "gossamer.runs.attach",
    "plan": "gossamer.planner.planning",
    "shrink": "gossamer.search.shrinking",
    "sparsify": "gossamer.runs.oneshot",
    "compact": "gossamer.nn.compaction",
    "compile": "gossamer.running.layers.compiler",
    "explain": "gossamer.running.layers.explanation",
    "save": "gossamer.io.artifact.writer",
    "load": "gossamer.io.loading",
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
    from gossamer.io.artifact.writer import save
    from gossamer.io.loading import load
    from gossamer.nn.compaction import compact
    from gossamer.ops.dispatch import strict
    from gossamer.planner.planning import plan
    from gossamer.running.layers.compiler import compile
    from gossamer.running.layers.explanation import explain
    from gossamer.runs.attach import attach
    from gossamer.runs.oneshot import sparsify
    from gossamer.search.shrinking import shrink


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    module = importlib.import_module(home)
    return module if home == f"gossamer.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
