# SPDX-License-Identifier: Apache-2.0
"""`gossamer run`: use a model; one file per kind of work."""

import click

from gossamer.cli.run.encode import encode
from gossamer.cli.run.serve import serve
from gossamer.cli.run.text import chat, complete
from gossamer.cli.shell import CommandGroup

__all__ = ["run"]


@click.group(cls=CommandGroup, short_help="Use a model: encode, chat, complete, serve.")
def run() -> None:
    """Use a pruned or dense model: vectors of texts, new text, answers over HTTP."""


for _command in (encode, chat, complete, serve):
    run.add_command(_command)
