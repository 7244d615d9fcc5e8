# SPDX-License-Identifier: Apache-2.0
"""The click command all of ours are: shared options, worked examples, clean stdout."""

from typing import Any

import click

from gossamer.cli.output import Output


class Command(click.Command):
    """A command with --json, -q and --debug whose callback gets an `Output` as its object.

    The callback returns an exit code or None. `examples` are lines shown as they are in --help.
    """

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._examples = examples
        self.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on stdout."),
            click.Option(["-q", "--quiet"], is_flag=True, help="No progress, no notes."),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        ]

    def invoke(self, ctx: click.Context) -> None:
        """Run the callback with stdout guarded, then write its result."""
        ctx.params.pop("debug")
        out = Output(
            command_name(ctx), json=ctx.params.pop("as_json"), quiet=ctx.params.pop("quiet")
        )
        ctx.obj = out
        with out.guard_stdout():
            code = super().invoke(ctx)
        out.flush()
        if code:
            ctx.exit(code)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, unwrapped so that they can be pasted."""
        if not self._examples:
            return
        with formatter.section("Examples"):
            for line in self._examples.strip().splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


def command_name(ctx: click.Context) -> str:
    """The command as typed after `gossamer`."""
    return " ".join(ctx.command_path.split()[1:])
