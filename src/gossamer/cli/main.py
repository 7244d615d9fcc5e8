# SPDX-License-Identifier: Apache-2.0
"""The `gossamer` command: finds the subcommand, turns errors into one line and an exit code."""

import importlib
import sys
from collections.abc import Sequence

import click

import gossamer
from gossamer.cli.shell import CommandGroup, tell_failure

__all__ = [
    "COMMANDS",
    "cli",
    "main",
]

# Modules are imported when their command is looked up; none of them imports torch at its top.
COMMANDS = (
    "quickstart",
    "shrink",
    "prune",
    "train",
    "plan",
    "run",
    "recipe",
    "zoo",
    "explain",
    "bench",
    "convert",
    "doctor",
    "completion",
)
_GROUPS = ("recipe", "zoo", "bench", "run")


class _Commands(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gossamer.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"max_content_width": 100})
@click.version_option(gossamer.__version__, prog_name="gossamer")
def cli() -> None:
    """Sparse neural networks that are really smaller and faster.

    Start with `gossamer quickstart`: it prunes, trains and runs a small model in under a minute,
    without network, and shows bytes, time and quality beside the dense model's.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = cli.main(arguments, prog_name="gossamer", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone: there is nobody left to tell.
        sys.stderr.close()
        return 1
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except SystemExit:
        raise
    # Not Exception: a panic of a package written in Rust is none.
    except BaseException as error:
        words = [word for word in arguments if not word.startswith("-")]
        known = words and words[0] in COMMANDS
        command = words[: 2 if words[0] in _GROUPS else 1] if known else []
        return tell_failure(error, arguments, " ".join(command))
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
