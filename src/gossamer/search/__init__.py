# SPDX-License-Identifier: Apache-2.0
"""The search for the smallest, fastest model within a quality the user names.

Start with `shrink`: it makes a workload of the data, tries candidates while there is time (`rungs`
says which, `trial` makes and measures one), and keeps the best. A `ShrinkResult` says what it found
within `SearchLimits`; each `Trial` is a `Point` of quality and time, and a `Mask` is what
candidates prune by. `page` shows a result, `contenders` are the engines of others that it is
compared with, `workloads` what a search works with.
"""

from gossamer.search.candidates import Mask
from gossamer.search.front import SearchLimits, ShrinkResult
from gossamer.search.shrinking import shrink
from gossamer.search.trial import Point, Trial

__all__ = [
    "Mask",
    "Point",
    "SearchLimits",
    "ShrinkResult",
    "Trial",
    "shrink",
]
