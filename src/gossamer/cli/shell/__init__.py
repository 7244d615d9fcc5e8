# SPDX-License-Identifier: Apache-2.0
"""What all commands share: options, output, progress, errors and exit codes. Free of torch.

A command is a function under `@gossamer_command(...)` that gets an `Output`: it notes what it does,
shows the stages of long work and gives one result, a document for --json and tables for people.
`grid_exit` is for commands that train; it needs torch and is not loaded here.
"""

from gossamer.cli.shell.command import CommandGroup, gossamer_command, resume_command
from gossamer.cli.shell.output import Output, Verbatim, comparison_table, table, tell_failure
from gossamer.cli.shell.parameters import (
    PATH,
    POSITIVE,
    SPARSITY,
    Fraction,
    artifact_option,
    pooling_option,
    precision_option,
    special_tokens_option,
    threads_option,
)

__all__ = [
    "PATH",
    "POSITIVE",
    "SPARSITY",
    "CommandGroup",
    "Fraction",
    "Output",
    "Verbatim",
    "artifact_option",
    "comparison_table",
    "gossamer_command",
    "pooling_option",
    "precision_option",
    "resume_command",
    "special_tokens_option",
    "table",
    "tell_failure",
    "threads_option",
]
