# SPDX-License-Identifier: Apache-2.0
"""`gossamer completion`: what the TAB key offers."""

import click
from click import Choice, argument
from click.shell_completion import get_completion_class

from gossamer.cli.shell import Output, gossamer_command

_EXAMPLES = """
gossamer completion bash >> ~/.bashrc
gossamer completion zsh >> ~/.zshrc
gossamer completion fish > ~/.config/fish/completions/gossamer.fish
"""


@gossamer_command("The script that completes commands in a shell.", _EXAMPLES)
@argument("shell", type=Choice(["bash", "zsh", "fish"]))
def completion(out: Output, shell: str) -> None:
    """Print what SHELL must read once to complete commands, options and their values."""
    from gossamer.cli.main import cli

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click cannot complete in {shell}.")
    made = found(cli, {}, "gossamer", "_GOSSAMER_COMPLETE")
    # Not source(): for bash that starts one, to look at its version.
    script = made.source_template % made.source_vars()
    out.result({"shell": shell, "script": script}, script)
