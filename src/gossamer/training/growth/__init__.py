# SPDX-License-Identifier: Apache-2.0
"""Growth: a small model is trained first, then made larger without losing what it learned.

`grow` makes the larger model, which computes the same, and moves the optimizer's whole state.
`verify_growth` compares loss and gradients before and after. `GrowthWatch` says when a run grows,
by `GrowthStep`s that name a step or a slope of the loss. `upcycle` makes experts of feed-forward
parts.
"""

from gossamer.training.growth.growing import grow
from gossamer.training.growth.plan import Growth
from gossamer.training.growth.upcycling import upcycle
from gossamer.training.growth.verify import GrowthCheck, verify_growth
from gossamer.training.growth.watch import GrowthStep, GrowthWatch, SlopeMonitor

__all__ = [
    "Growth",
    "GrowthCheck",
    "GrowthStep",
    "GrowthWatch",
    "SlopeMonitor",
    "grow",
    "upcycle",
    "verify_growth",
]
