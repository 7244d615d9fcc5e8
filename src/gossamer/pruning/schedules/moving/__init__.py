# SPDX-License-Identifier: Apache-2.0
"""Schedules whose masks move all the time: weights go and others come, as many as went.

`SetSchedule` grows weights at random and `RigL` where gradients are large; `DYNAMIC` has these by
their kinds, and the one that reopens zeros of a grown model. `TopKast` keeps a `DenseStore` of all
weights and trains the largest. A `StoredSchedule` is one with such a store.
"""

from gossamer.pruning.schedules.moving.dense_store import DenseStore, StoredSchedule, TopKast
from gossamer.pruning.schedules.moving.dynamic import DYNAMIC, RigL, SetSchedule

__all__ = ["DYNAMIC", "DenseStore", "RigL", "SetSchedule", "StoredSchedule", "TopKast"]
