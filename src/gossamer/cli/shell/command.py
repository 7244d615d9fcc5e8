# SPDX-License-Identifier: Apache-2.0
"""The click command all of ours are: shared options, worked examples, clean stdout."""

import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

import click

from gossamer.cli.shell.mistakes import check_words
from gossamer.cli.shell.output import Output


class Command(click.Command):
    """A command with --json, -q and --debug whose callback gets an `Output` as its object.

    The callback returns an exit code or None. `examples` are lines shown as they are in --help.
    """

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings["show_default"] = True
        self.examples = examples.strip().splitlines()
        flags = (
            (["--json", "as_json"], "One JSON document on stdout."),
            (["-q", "--quiet"], "No progress, no notes."),
            (["--debug"], "Show the traceback of an error."),
        )
        self.params += [click.Option(names, is_flag=True, help=text) for names, text in flags]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; first, what was forgotten is told with the line to type."""
        check_words(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the callback with stdout guarded, then write its result."""
        ctx.params.pop("debug")
        # The command as typed after `gossamer`.
        name = ctx.command_path.partition(" ")[2]
        ctx.obj = out = Output(name, ctx.params.pop("as_json"), ctx.params.pop("quiet"))
        with out.guard_stdout():
            code = super().invoke(ctx)
        out.flush()
        if code:
            ctx.exit(code)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, unwrapped so that they can be pasted."""
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def gossamer_command(
    short_help: str, examples: str, name: str | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a `Command` of a function that gets an `Output` as its first argument.

    Args:
        short_help: for the list of commands.
        examples: lines for --help.
        name: of the command; None: the name of the function.
    """

    def made(function: Callable[..., Any]) -> click.Command:
        return click.command(name, Command, examples=examples, short_help=short_help)(
            click.pass_obj(function)
        )

    return made


def resume_command() -> str:
    """The command line that was typed, with --resume: how a run that was stopped goes on."""
    arguments = [word for word in sys.argv[1:] if word != "--resume"]
    start = ["gossamer"]
    if world := os.environ.get("LOCAL_WORLD_SIZE"):
        start = ["torchrun", "--nproc-per-node", world, "-m", "gossamer"]
    return shlex.join([*start, *arguments, "--resume"])
