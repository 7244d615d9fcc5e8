# SPDX-License-Identifier: Apache-2.0
"""Where a run lives: `OUT` is the artifact at the end, `OUT.run` beside it everything before.

OUT.run/checkpoints/step_00000500/   complete or absent
OUT.run/metrics.jsonl                one line per event
OUT.run/report.html                  curves, once it is done
"""

import copy
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gossamer.errors import InputError, ResourceError
from gossamer.io.artifact.destination import check_replaceable
from gossamer.io.safe_files.directories import SPARE_FACTOR, exclusive_lock


class RunFolder:
    """The folders of one run.

    Args:
        target: where the artifact goes.
    """

    def __init__(self, target: Path) -> None:
        self.target = Path(os.path.realpath(target))
        self.path = self.target.with_name(f"{self.target.name}.run")
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.report = self.path / "report.html"

    @contextmanager
    def opened(self, *, resume: bool) -> Iterator[None]:
        """Hold the folders for this process; refused before any work if they cannot be written.

        Args:
            resume: whether what an earlier run left may be taken up.
        """
        check_replaceable(self.target)
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.path):
                if not resume and self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
                    raise InputError(
                        f"{self.path}: an earlier run lies there. Add --resume to go on with it,"
                        " or delete the folder."
                    )
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                for folder in (self.target.parent, self.path, self.checkpoints):
                    probe = folder / f".probe-{uuid.uuid4().hex}"
                    probe.mkdir()
                    probe.rmdir()
                try:
                    yield
                finally:
                    # A run that was refused before its first line leaves nothing behind.
                    with suppress(OSError):
                        self.checkpoints.rmdir()
                        self.path.rmdir()
        except OSError as error:
            raise ResourceError(
                f"{error.filename or self.path}: cannot be written ({error.strerror or error})."
                " Check its permissions, or choose another -o."
            ) from error

    def of_stage(self, number: int) -> "RunFolder":
        """The part of one stage of a recipe: checkpoints and metrics of its own."""
        part = copy.copy(self)
        part.checkpoints = self.checkpoints / f"stage_{number}"
        part.metrics = self.path / f"metrics_stage_{number}.jsonl"
        return part

    def remove_checkpoints(self) -> None:
        """The run is complete: metrics and report stay."""
        # Renamed first: checkpoints that are half deleted must not look like a run to go on with.
        doomed = self.checkpoints.with_name(f"{self.checkpoints.name}.done")
        shutil.rmtree(doomed, ignore_errors=True)
        self.checkpoints.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def check_space(self, needed: int) -> None:
        """Refuse at once if the disk has not `needed` bytes and a tenth more."""
        free, wanted = shutil.disk_usage(self.path).free, int(needed * SPARE_FACTOR)
        if wanted > free:
            raise ResourceError(
                f"{self.path}: not enough disk space for this run; needed {wanted} bytes for its"
                f" checkpoints and the artifact, free {free}. Nothing was trained. Free some space"
                " or choose another folder."
            )
