# SPDX-License-Identifier: Apache-2.0
"""Processes that begin behind their imports, which take longer than most of what tests run."""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.context import BaseContext
from pathlib import Path


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


def begin(environment: Mapping[str, str], out: str, errors: str) -> None:
    """What a new interpreter would find: an environment, paths of modules, files to write to."""
    import torch

    for name, number in ((out, 1), (errors, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    torch.set_num_threads(1)


def end(code: int | None) -> None:
    """Exit with the calls that an interpreter makes at its end."""
    sys.stdout.flush()
    atexit._run_exitfuncs()
    sys.exit(code)


def run_script(
    script: str | Path, *arguments: str | Path, seconds: float = 280, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What `python SCRIPT ARGUMENTS...` gives."""
    words = [str(script), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        # Pipes: a limit on the size of files does not hold for them.
        files = [str(Path(folder, name)) for name in ("out", "errors")]
        for file in files:
            os.mkfifo(file)
        process = fork_server().Process(
            target=_run, args=(words, {**os.environ, **environment}, *files)
        )
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


def _run(words: list[str], environment: dict[str, str], out: str, errors: str) -> None:
    begin(environment, out, errors)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
    end(0)
