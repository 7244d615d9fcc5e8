# SPDX-License-Identifier: Apache-2.0
"""Sparse neural networks that are really smaller and faster.

Names are loaded on first use: importing gossamer does not import torch.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

__version__ = "0.1.0"

__all__ = [
    "attach",
    "attention",
    "compact",
    "compile",
    "errors",
    "explain",
    "graph",
    "grow",
    "load",
    "nn",
    "plan",
    "prune",
    "register",
    "save",
    "shrink",
    "sparsify",
    "strict",
    "testing",
    "train",
    "verify_growth",
]

if TYPE_CHECKING:
    from gossamer import errors, graph, nn, register, testing
    from gossamer.io import load
    from gossamer.io.artifact import save
    from gossamer.nn.surgery.compaction import compact
    from gossamer.ops import strict
    from gossamer.ops.attention import attention
    from gossamer.planner import plan
    from gossamer.running.layers import compile, explain
    from gossamer.runs import attach, prune, sparsify, train
    from gossamer.search import shrink
    from gossamer.training.growth import grow, verify_growth

# Public name -> module that holds it. A submodule is given as itself.
__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "attach": "runs.schedules",
        "attention": "ops.attention.verb",
        "plan": "planner.planning",
        "prune": "runs.verbs",
        "train": "runs.verbs",
        "shrink": "search.shrinking",
        "sparsify": "runs.oneshot",
        "compact": "nn.surgery.compaction",
        "compile": "running.layers.compiler",
        "explain": "running.layers.explanation",
        "grow": "training.growth.growing",
        "verify_growth": "training.growth.verify",
        "save": "io.artifact.writer",
        "load": "io.loading",
        "strict": "ops.fallback",
        "errors": "errors",
        "graph": "graph",
        "nn": "nn",
        "register": "register",
        "testing": "testing",
    },
)
