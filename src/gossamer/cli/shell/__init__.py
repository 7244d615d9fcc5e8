# SPDX-License-Identifier: Apache-2.0
"""What all commands share: output, progress, errors and exit codes. Free of torch.

A command is a function under `@gossamer_command(...)`, perhaps in a `CommandGroup`, that gets an
`Output`: it notes what it does, shows the stages of long work and gives one result, a document for
--json and tables for people (`table`, `comparison_table`, `Verbatim` text). `tell_failure` ends one
that failed, `resume_command` is what to type to go on. Options are in `cli/options.py`; `grid_exit`
is for commands that train; it needs torch and is not loaded here.
"""

from gossamer.cli.shell.command import CommandGroup, gossamer_command, resume_command
from gossamer.cli.shell.output import Output, Verbatim, comparison_table, table, tell_failure

__all__ = [
    "CommandGroup",
    "Output",
    "Verbatim",
    "comparison_table",
    "gossamer_command",
    "resume_command",
    "table",
    "tell_failure",
]
