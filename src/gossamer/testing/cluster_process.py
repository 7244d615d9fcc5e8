# SPDX-License-Identifier: Apache-2.0
"""A command on a host of a cluster in a box, from its start to what it wrote."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from gossamer.testing import cluster_host


@dataclass(frozen=True)
class Finished:
    """How a command ended.

    Attributes:
        exit_code: 128 + n for an end by signal n, 124 for one by the time limit.
        output: what it wrote to standard output.
        errors: what it wrote to standard error.
    """

    exit_code: int
    output: str
    errors: str


class HostProcess:
    """A running command; all it starts ends with it, and with the process that made the cluster."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        namespace: int | None,
        folder: str | None = None,
    ) -> None:
        # Files without names: they cannot fill up like pipes, and nobody has to delete them.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by result)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        lifeline, self._lifeline = os.pipe()
        script = [sys.executable, "-I", "-S", cluster_host.__file__]
        self._process = subprocess.Popen(  # noqa: S603  (the caller's command, no shell)
            [*script, str(-1 if namespace is None else namespace), str(lifeline), *command],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env=environment,
            cwd=folder,
            pass_fds=(lifeline,) if namespace is None else (lifeline, namespace),
        )
        os.close(lifeline)

    @property
    def running(self) -> bool:
        """Whether the command has not ended yet."""
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the command and all it started, not to the process that watches them."""
        for process in cluster_host.descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def output(self) -> str:
        """What the command wrote to standard output so far."""
        return _text_of(self._output)

    def result(self, timeout_seconds: float) -> Finished:
        """Wait for the end, which comes by force after the time limit."""
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            code = 124
        return Finished(code, _text_of(self._output), _text_of(self._errors))

    def kill(self) -> None:
        """End the command and all it started, as SIGKILL does."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._process.wait()

    def close(self) -> None:
        """End the command if it runs, and forget what it wrote."""
        self.kill()
        self._output.close()
        self._errors.close()


def _text_of(file: IO[bytes]) -> str:
    # Read by offset: the command writes through the same file position.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
