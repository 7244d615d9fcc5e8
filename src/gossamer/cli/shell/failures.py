# SPDX-License-Identifier: Apache-2.0
"""Errors as a message and an exit code.

0 ok, 2 usage or recipe, 3 artifact refused, 4 resource or goal not reachable, 5 distributed
failure, 130 interrupted, 143 terminated; 1 is a bug of gossamer.
"""

import errno
from dataclasses import dataclass

import click

from gossamer.errors import GossamerError, ResourceError
from gossamer.out_of_memory import is_out_of_memory

INTERRUPTED = 130
BUG = 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Failure:
    """What to tell a user about an exception."""

    kind: str
    message: str
    exit_code: int


def explain_failure(error: BaseException) -> Failure:
    """The message and exit code of anything a command can raise."""
    if isinstance(error, GossamerError):
        return Failure(type(error).__name__, str(error), error.exit_code)
    if isinstance(error, click.ClickException):
        return Failure("UsageError", _usage(error), error.exit_code)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Failure("Interrupted", "interrupted; nothing was left half-written.", INTERRUPTED)
    if is_out_of_memory(error):
        text = f"out of memory ({error}). Close other programs, or use a smaller model."
        return Failure("OutOfMemory", text, ResourceError.exit_code)
    if isinstance(error, OSError):
        return _file_failure(error)
    text = f"this is a bug of gossamer ({type(error).__name__}: {error})."
    return Failure("Bug", f"{text} Run again with --debug and report the traceback.", BUG)


def _usage(error: click.ClickException) -> str:
    message = error.format_message()
    ctx = getattr(error, "ctx", None)
    return message if ctx is None else f"{message} See '{ctx.command_path} --help'."


def _file_failure(error: OSError) -> Failure:
    where = f"{error.filename}: " if error.filename else ""
    what = error.strerror or str(error)
    if error.errno in _FULL:
        text = f"{where}{what}. Free some space or choose another folder."
        return Failure("ResourceError", text, ResourceError.exit_code)
    text = f"{where}{what}. Check the path and its permissions."
    return Failure(type(error).__name__, text, ResourceError.exit_code)
