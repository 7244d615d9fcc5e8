# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while training goes on.

Tensors are copied before `submit` returns, on the CPU too; the folder gets its name only when all
of it is on disk. One write at a time: a second one waits for the first.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from gossamer.training.checkpoint.folders import CheckpointStore, Snapshot


class CheckpointWriter:
    """Writes snapshots, in a thread of its own or at once.

    Args:
        store: where they go.
        asynchronous: whether `submit` returns before the checkpoint is on disk.
    """

    def __init__(self, store: CheckpointStore, *, asynchronous: bool = False) -> None:
        self.store = store
        self.copies = asynchronous
        self._pool = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._pending: Future[Path] | None = None

    def submit(self, snapshot: Snapshot) -> Path | None:
        """Write a snapshot; the folder, or None while it is being written.

        A failure of the write before is raised here.
        """
        self.wait()
        if self._pool is None:
            return self.store.write(snapshot)
        self._pending = self._pool.submit(self.store.write, snapshot)
        return None

    def wait(self) -> None:
        """Return when nothing is being written; raises what the write raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
