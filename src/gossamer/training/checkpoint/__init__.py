# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: complete or absent, without pickle, equal to the last bit.

`CheckpointStore` reads and writes their folders, `CheckpointWriter` writes a `Snapshot` while
training goes on, `read_checkpoint` gives a `Checkpoint` back, `large_tensors` those of its tensors
that stay in the file. `state_tree` turns nested state into
JSON and tensors, `restoring` brings a run back to it, `random_state` its random numbers.
"""

from gossamer.training.checkpoint.folders import (
    Checkpoint,
    CheckpointStore,
    CheckpointWriter,
    Snapshot,
    large_tensors,
    read_checkpoint,
)

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "CheckpointWriter",
    "Snapshot",
    "large_tensors",
    "read_checkpoint",
]
