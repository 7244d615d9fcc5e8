# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose state is small: exact fp32 masters in two halves, moments in 4 bytes or in 1.

They take any Parameters, compact `values` or ordinary ones, and are stock torch optimizers to
schedulers, `clip_grad_norm_`, DDP and `gossamer.compact`. `SideBySide` makes one of several.
"""

from gossamer.training.optim.adam import LAMB, AdamW
from gossamer.training.optim.base import ParamGroup, SmallStateOptimizer, StepsEachParameter
from gossamer.training.optim.momentum import LARS, SGD
from gossamer.training.optim.side_by_side import SideBySide

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdamW",
    "ParamGroup",
    "SideBySide",
    "SmallStateOptimizer",
    "StepsEachParameter",
]
