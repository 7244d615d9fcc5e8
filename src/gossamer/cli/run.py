# SPDX-License-Identifier: Apache-2.0
"""`gossamer run`: use a model; one file per subcommand."""

import click

from gossamer.cli.run_encode import encode
from gossamer.cli.run_serve import serve


@click.group(short_help="Use a model: encode, serve.")
def run() -> None:
    """Use a pruned or dense model: turn texts into vectors, answer over HTTP."""


run.add_command(encode)
run.add_command(serve)
