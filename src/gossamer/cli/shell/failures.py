# SPDX-License-Identifier: Apache-2.0
"""Errors as a message and an exit code.

0 ok, 2 usage or recipe, 3 artifact refused, 4 resource or goal not reachable, 5 distributed
failure, 130 interrupted, 143 terminated; 1 is a bug of gossamer.
"""

import errno
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import click

from gossamer.cli.shell.output import write_json
from gossamer.errors import GossamerError, ResourceError
from gossamer.out_of_memory import is_out_of_memory

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Failure(NamedTuple):
    """What to tell a user about an exception."""

    type: str
    message: str
    exit_code: int


def tell_failure(error: BaseException, arguments: Sequence[str], command: str) -> int:
    """Say on stderr, and as the document of --json, why `command` failed; its exit code."""
    failure = explain_failure(error)
    if "--debug" in arguments:
        traceback.print_exception(error, file=sys.stderr)
    click.echo(f"gossamer: {failure.message}", err=True)
    if "--json" in arguments:
        write_json(command, {"error": failure._asdict()})
    return failure.exit_code


def explain_failure(error: BaseException) -> Failure:
    """The message and exit code of anything a command can raise."""
    if isinstance(error, GossamerError):
        return Failure(type(error).__name__, str(error), error.exit_code)
    if isinstance(error, click.ClickException):
        ctx = getattr(error, "ctx", None)
        hint = "" if ctx is None else f" See '{ctx.command_path} --help'."
        return Failure("UsageError", f"{error.format_message()}{hint}", error.exit_code)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Failure("Interrupted", "interrupted; nothing was left half-written.", 130)
    if is_out_of_memory(error):
        text = f"out of memory ({error}). Close other programs, or use a smaller model."
        return Failure("OutOfMemory", text, ResourceError.exit_code)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        kind, advice = type(error).__name__, "Check the path and its permissions."
        if error.errno in _FULL:
            kind, advice = "ResourceError", "Free some space or choose another folder."
        text = f"{where}{error.strerror or error}. {advice}"
        return Failure(kind, text, ResourceError.exit_code)
    text = f"this is a bug of gossamer ({type(error).__name__}: {error})."
    return Failure("Bug", f"{text} Run again with --debug and report the traceback.", 1)
