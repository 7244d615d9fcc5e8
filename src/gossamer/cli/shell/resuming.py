# SPDX-License-Identifier: Apache-2.0
"""Runs that stop on the way say how to go on."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gossamer.errors import ResourceError
from gossamer.training.loop.endings import TrainingStopped


def resume_command() -> str:
    """The command line that was typed, with --resume."""
    arguments = [word for word in sys.argv[1:] if word != "--resume"]
    world = os.environ.get("LOCAL_WORLD_SIZE")
    start = ["gossamer"]
    if world is not None:
        start = ["torchrun", "--nproc-per-node", world, "-m", "gossamer"]
    return shlex.join([*start, *arguments, "--resume"])


@contextmanager
def told_how_to_resume() -> Iterator[None]:
    """Add the command to what ends a run whose state is kept."""
    try:
        yield
    except TrainingStopped as error:
        text = f"{error} Go on with:\n  {resume_command()}"
        raise TrainingStopped(text, error.exit_code - 128) from error
    except ResourceError as error:
        raise ResourceError(f"{error}\nGo on with:\n  {resume_command()}") from error
