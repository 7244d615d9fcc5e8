# SPDX-License-Identifier: Apache-2.0
"""The search for the smallest, fastest model within a quality the user names.

Start with `shrink`: it makes a workload of the data, tries candidates while there is time
(`rungs` says which, `trial` makes and measures one), and keeps the best. `ShrinkResult` says what
it found; `verdict`, `rows_of`, `notes_of` and `search_page` show it; `EngineContenders` are the
engines of others that it is compared with.
"""

from gossamer.search.candidates import Mask
from gossamer.search.contenders import EngineContenders, dense_point, engine_points
from gossamer.search.front import SearchLimits, ShrinkResult
from gossamer.search.page import HEAD, front_chart, notes_of, rows_of, search_page, verdict
from gossamer.search.shrinking import shrink
from gossamer.search.trial import Point, Trial

__all__ = [
    "HEAD",
    "EngineContenders",
    "Mask",
    "Point",
    "SearchLimits",
    "ShrinkResult",
    "Trial",
    "dense_point",
    "engine_points",
    "front_chart",
    "notes_of",
    "rows_of",
    "search_page",
    "shrink",
    "verdict",
]
