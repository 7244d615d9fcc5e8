# SPDX-License-Identifier: Apache-2.0
"""A rank that fails ends soon, whatever its broken connections do while they are taken down."""

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from gossamer.cli.shell.output import explain_failure

__all__ = [
    "ends_for_good",
]

# Unwinding may still write a message and close files; more is not waited for.
_UNWINDING_SECONDS = 10.0


@contextmanager
def ends_for_good() -> Iterator[None]:
    """What fails in here while ranks are connected ends the process without Python's clean-up.

    Destructors of connections may wait for a peer that is gone, and once Python has begun to
    finalize no thread of its own can end it any more.
    """
    try:
        yield
    except BaseException as error:
        if dist.is_initialized():
            code = explain_failure(error).exit_code
            if isinstance(error, SystemExit) and isinstance(error.code, int):
                code = error.code
            atexit.register(_leave, code)
            timer = threading.Timer(_UNWINDING_SECONDS, _leave, (code,))
            timer.daemon = True
            timer.start()
        raise


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
