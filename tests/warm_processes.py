# SPDX-License-Identifier: Apache-2.0
"""Processes that begin behind their imports, which take longer than most of what tests run."""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import NamedTuple


def fork_server() -> BaseContext:
    """Starts them: torch is imported once in a test run."""
    multiprocessing.set_forkserver_preload(
        [
            *("gossamer.cli.train", "gossamer.runs.training", "gossamer.runs.verbs"),
            *("gossamer.training.distributed.placement.mesh", "gossamer.cli.shell.grid_exit"),
            *(
                "gossamer.zoo",
                "torch._dynamo",
                "torch.nn.parallel",
                "torch.profiler",
                "rich.console",
            ),
        ]
    )
    return multiprocessing.get_context("forkserver")


class Surroundings(NamedTuple):
    """What a new interpreter finds; the server's own are those of the test that came first."""

    environment: dict[str, str]
    folder: str

    @classmethod
    def here(cls, folder: Path | None = None, **environment: str) -> "Surroundings":
        return cls({**os.environ, **environment}, str(folder or Path.cwd()))

    def enter(self) -> None:
        import torch

        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:0] = filter(None, self.environment.get("PYTHONPATH", "").split(os.pathsep))
        torch.set_num_threads(1)


def write_to(*files: str) -> None:
    """Make these the standard output and the place of errors."""
    for number, name in enumerate(files, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)


def end(code: int | None) -> None:
    """Exit with the calls that an interpreter makes at its end."""
    sys.stdout.flush()
    atexit._run_exitfuncs()
    sys.exit(code)


def run_script(
    script: str | Path,
    *arguments: str | Path,
    folder: Path | None = None,
    seconds: float = 280,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """What `python SCRIPT ARGUMENTS...` gives in a folder."""
    words = [str(script), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as pipes:
        # Pipes: a limit on the size of files does not hold for them.
        files = [str(Path(pipes, name)) for name in ("out", "errors")]
        for file in files:
            os.mkfifo(file)
        given = Surroundings.here(folder, **environment)
        process = fork_server().Process(target=_run, args=(words, given, *files))
        with ThreadPoolExecutor(len(files)) as readers:
            written = [readers.submit(Path(file).read_text) for file in files]
            process.start()
            process.join(seconds)
            if process.exitcode is None:
                process.kill()
                process.join()
            for file in files:  # A reader waits for a writer, and there may have been none.
                with suppress(OSError):
                    os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        return subprocess.CompletedProcess(
            words, process.exitcode, *(text.result() for text in written)
        )


def _run(words: list[str], given: Surroundings, *files: str) -> None:
    write_to(*files)
    given.enter()
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
    end(0)
