# SPDX-License-Identifier: Apache-2.0
"""Where the training inside a pruning run is kept, so that it goes on after a kill."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gossamer.pruning.calibration.journal import check_same_run
from gossamer.recipes.stages.train import CheckpointSettings
from gossamer.training.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from gossamer.training.checkpoint.restoring import read_counters
from gossamer.training.loop import Surroundings
from gossamer.training.run_files import MetricsFile, RunFolder


@dataclass(frozen=True)
class KeptRun:
    """A folder that is held open, and what the run is.

    Attributes:
        folder: `RunFolder.opened` is around the run.
        key: everything that decides the result to the last bit, as digests and short texts.
    """

    folder: RunFolder
    key: Mapping[str, str]

    def of_stage(self, number: int) -> "KeptRun":
        """The part of one stage of the recipe."""
        return replace(self, folder=self.folder.of_stage(number))

    def opened(
        self, settings: CheckpointSettings, say: Callable[[str], None]
    ) -> tuple[Checkpoint | None, Surroundings]:
        """The checkpoint to go on with, and where the loop writes more.

        Raises:
            InputError: another run wrote the checkpoint.
        """
        store = CheckpointStore(self.folder.checkpoints, settings.keep)
        store.remove_leftovers()
        checkpoint = store.newest(say)
        if checkpoint is not None:
            check_same_run(self.folder.path, checkpoint.run, self.key)
            say(f"going on after step {checkpoint.step}.")
        return checkpoint, Surroundings(
            writer=CheckpointWriter(store, asynchronous=settings.asynchronous),
            run=self.key,
            sinks=(MetricsFile(self.folder.metrics, metrics_bytes(checkpoint)),),
        )


def metrics_bytes(checkpoint: Checkpoint | None) -> int:
    """How long the file of metrics was then."""
    return 0 if checkpoint is None else int(read_counters(checkpoint.state)["metrics_bytes"])
