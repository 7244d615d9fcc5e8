# SPDX-License-Identifier: Apache-2.0
"""The mark that a pattern leaves on a module that computes heads and is not replaced.

Modules of transformers and blocks of the zoo read it when they run. `SparseAttention` has its
pattern as a setting of its own.
"""

from typing import Any

from torch import nn

FULL = "full"
MARK = "gossamer_pattern"


def marked_with(module: nn.Module) -> str:
    """The pattern that a module was given; `full` if none."""
    return str(getattr(module, MARK, FULL))


def takes_mark(module: nn.Module) -> bool:
    """Whether a module reads the mark: blocks of the zoo say so, and what calls the interface."""
    return hasattr(type(module), MARK) or calls_interface(module)


def calls_interface(module: nn.Module) -> bool:
    """Whether a module of transformers computes heads by the function its configuration names."""
    return hasattr(module, "is_causal") and hasattr(module, "config")


def mark(module: nn.Module, pattern: str) -> None:
    """Let a module attend to a pattern; what calls the interface must be connected, too."""
    setattr(module, MARK, pattern)


def num_heads(module: nn.Module) -> int:
    """The heads of a module, as it or its configuration says; 0 if that is not known."""
    config: Any = getattr(module, "config", module)
    names = ("num_attention_heads", "n_head", "num_heads")
    found = next((getattr(config, name) for name in names if hasattr(config, name)), 0)
    return found if isinstance(found, int) else 0
