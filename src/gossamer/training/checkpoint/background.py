# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while training goes on.

Tensors are copied before `submit` returns, on the CPU too; the folder gets its name only when all
of it is on disk. One write at a time: a second one waits for the first.
"""

import threading
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
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._asynchronous = asynchronous

    def submit(self, snapshot: Snapshot) -> Path | None:
        """Write a snapshot; the folder, or None while it is being written.

        A failure of the write before is raised here.
        """
        self.wait()
        if not self._asynchronous:
            return self.store.write(snapshot)
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="checkpoint")
        self._thread.start()
        return None

    def wait(self) -> None:
        """Return when nothing is being written; raises what the write raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self.store.write(snapshot)
        except BaseException as error:
            self._error = error
