# SPDX-License-Identifier: Apache-2.0
"""Data: from a user's file to batches, the same way for `prune`, `train`, `shrink` and `run`.

- `gossamer.data.files` has one reader per type of file. Start there.
- `gossamer.data.token_ids` makes token ids and padded batches of texts.
- `gossamer.data.tasks` makes training tasks of what was read.
- This door has batches by number, so that the place of a run in its data is one integer: `Batches`
  is what a loop asks for, `ShuffledBatches` and `RepeatedBatches` give them, and `generator_of`
  draws the same numbers for the same step. A `Divisible` batch and a `SharedEvaluation` say how
  several processes share their work.
"""

from gossamer.data.batches import (
    Batches,
    Divisible,
    RepeatedBatches,
    ShuffledBatches,
    generator_of,
)
from gossamer.data.evaluation import SharedEvaluation

__all__ = [
    "Batches",
    "Divisible",
    "RepeatedBatches",
    "SharedEvaluation",
    "ShuffledBatches",
    "generator_of",
]
