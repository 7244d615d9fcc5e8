# SPDX-License-Identifier: Apache-2.0
"""Another engine as a process in its own environment, asked for one thing at a time."""

import contextlib
import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent / "engine_scripts"
_END_SECONDS = 10


class EngineFailed(Exception):
    """An engine refused a case, died or did not answer."""


class EngineProcess:
    """A running script of an engine; see `engine_scripts/answer.py` for the other side.

    Args:
        title: how messages call it.
        python: the interpreter of its environment.
        script: what it runs; it finds the modules of `engine_scripts`.
        threads: how many it may use.
        patience_seconds: for one answer.
    """

    def __init__(
        self, title: str, python: Path, script: Path, threads: int, patience_seconds: float
    ) -> None:
        self.title = title
        self._patience_seconds = patience_seconds
        self._process = subprocess.Popen(  # noqa: S603  (our script, the user's environment)
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(SCRIPTS)},
        )
        self._to: Any = self._process.stdin
        self._back: Any = self._process.stdout

    def ask(self, question: str, value: Any) -> dict[str, Any]:
        """The answer; EngineFailed says what went wrong."""
        asked, line = json.dumps({question: value}) + "\n", ""
        with contextlib.suppress(BrokenPipeError, ValueError):  # the latter where we closed a pipe
            self._to.write(asked)
            self._to.flush()
            if not select.select([self._back], [], [], self._patience_seconds)[0]:
                self._process.kill()
                raise EngineFailed(f"{self.title}: no answer within {self._patience_seconds:.0f} s")
            line = self._back.readline()
        if not line:
            raise EngineFailed(f"{self.title}: its process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{self.title}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        for pipe in (self._to, self._back):
            with contextlib.suppress(BrokenPipeError):  # a question it did not live to read
                pipe.close()
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
