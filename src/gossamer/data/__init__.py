# SPDX-License-Identifier: Apache-2.0
"""Data: from a user's file to batches, the same way for `prune`, `train`, `shrink` and `run`.

- `gossamer.data.files` has one reader per type of file. Start there.
- `gossamer.data.tasks` makes training tasks of what was read.
- This door has what lies between: texts as token ids, and batches by number, so that the place of
  a run in its data is one integer.
"""

from gossamer.data.batches import Batches, RepeatedBatches, ShuffledBatches, generator_of
from gossamer.data.token_ids import draw, padded, padded_batches, sentences, windows

__all__ = [
    "Batches",
    "RepeatedBatches",
    "ShuffledBatches",
    "draw",
    "generator_of",
    "padded",
    "padded_batches",
    "sentences",
    "windows",
]
