# SPDX-License-Identifier: Apache-2.0
"""What all commands share: options, output, progress, errors and exit codes. Free of torch.

A command is a function under `@gossamer_command(...)` that gets an `Output`: it notes what it does,
shows the stages of long work and gives one result, a document for --json and tables for people.
`grid_exit` and `resuming` are for commands that train; they need torch and are not loaded here.
"""

from gossamer.cli.shell.command import Command, gossamer_command
from gossamer.cli.shell.failures import explain_failure
from gossamer.cli.shell.mistakes import CommandGroup
from gossamer.cli.shell.output import Output, Verbatim, table, write_json
from gossamer.cli.shell.parameters import (
    POSITIVE,
    SPARSITY,
    Fraction,
    Shape,
    pooling_option,
    precision_option,
    special_tokens_option,
    threads_option,
)
from gossamer.cli.shell.progress import ProgressStage

__all__ = [
    "POSITIVE",
    "SPARSITY",
    "Command",
    "CommandGroup",
    "Fraction",
    "Output",
    "ProgressStage",
    "Shape",
    "Verbatim",
    "explain_failure",
    "gossamer_command",
    "pooling_option",
    "precision_option",
    "special_tokens_option",
    "table",
    "threads_option",
    "write_json",
]
