# SPDX-License-Identifier: Apache-2.0
"""Schedules that fix the mask before training, or in its first steps.

`BeforeTraining` ranks weights by a score such as SNIP's, `Random` and `Shuffled` do without one;
`EarlyBird`, `EarlyBirdChannels` and `EarlyBirdUnits` train densely until the mask stops changing.
"""

from gossamer.pruning.schedules.early.before_training import BeforeTraining, Random, Shuffled
from gossamer.pruning.schedules.early.early_bird import EarlyBird, EarlyBirdChannels
from gossamer.pruning.schedules.early.units import EarlyBirdUnits

__all__ = [
    "BeforeTraining",
    "EarlyBird",
    "EarlyBirdChannels",
    "EarlyBirdUnits",
    "Random",
    "Shuffled",
]
