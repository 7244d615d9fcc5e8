# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: complete or absent, without pickle, equal to the last bit.

`CheckpointStore` reads and writes their folders, `CheckpointWriter` writes while training goes on,
`state_tree` turns nested state into JSON and tensors, `restoring` brings a run back to it.
"""

from gossamer.training.checkpoint.folders import (
    Checkpoint,
    CheckpointStore,
    CheckpointWriter,
    Snapshot,
    read_checkpoint,
)
from gossamer.training.checkpoint.random_state import seed_all, undisturbed_random
from gossamer.training.checkpoint.restoring import read_counters

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "CheckpointWriter",
    "Snapshot",
    "read_checkpoint",
    "read_counters",
    "seed_all",
    "undisturbed_random",
]
