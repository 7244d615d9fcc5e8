# SPDX-License-Identifier: Apache-2.0
"""Models that anyone can make again: named recipes, and what they gave.

`ENTRIES` lists them. `make_entry` carries one out, from packaged models and generated data alone,
and checks the result against the record: its digest where the arithmetic is the same, its score
elsewhere. Nothing is fetched, so there is no host that could be shut down.
"""

from gossamer.runs.zoo.entries import ENTRIES, Entry
from gossamer.runs.zoo.making import Made, make_entry

__all__ = ["ENTRIES", "Entry", "Made", "make_entry"]
