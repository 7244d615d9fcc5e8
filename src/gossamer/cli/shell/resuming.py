# SPDX-License-Identifier: Apache-2.0
"""How to resume a run that was stopped."""

import os
import shlex
import sys


def resume_command() -> str:
    """The command line that was typed, with --resume."""
    arguments = [word for word in sys.argv[1:] if word != "--resume"]
    world = os.environ.get("LOCAL_WORLD_SIZE")
    start = ["gossamer"]
    if world is not None:
        start = ["torchrun", "--nproc-per-node", world, "-m", "gossamer"]
    return shlex.join([*start, *arguments, "--resume"])
