# SPDX-License-Identifier: Apache-2.0
"""The click command all of ours are: shared options, worked examples, clean stdout.

What is wrong with a command line is told before anything runs: forgotten flags, values and options.
click says what it tripped over; here people are told what they left out, and the line to type.
"""

import difflib
import itertools
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from gossamer.cli.shell.details import details
from gossamer.cli.shell.output import Output


def check_words(ctx: click.Context, words: Sequence[str]) -> None:
    """Raise UsageError where a value, a flag or something required was forgotten."""
    if ctx.resilient_parsing or any(word in ctx.help_option_names for word in words):
        return
    _check_values(ctx, words)
    try:
        found, extra, _ = ctx.command.make_parser(ctx).parse_args(list(words))
    except click.NoSuchOption as error:
        raise _mistake(ctx, _about_option(ctx, error.option_name)) from error
    except click.ClickException:
        return
    if extra:
        raise _mistake(ctx, _about_extra(ctx, words, extra[0]))
    _check_required(ctx, words, found)


# Names that are less alike are no help.
_ALIKE = 0.75


class CommandGroup(click.Group):
    """Commands under one name; a misspelt one is told with what is there."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; an unknown name ends here."""
        name, known = args[0] if args else "", self.list_commands(ctx)
        if name and name not in known and not name.startswith("-"):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint} There are {', '.join(known)}.")
        return super().resolve_command(ctx, args)


def _usage(ctx: click.Context) -> str:
    """Arguments and what must be given; below it the first example that the command has."""
    words = [ctx.command_path]
    for param in ctx.command.get_params(ctx):
        if isinstance(param, click.Argument):
            words.append(param.make_metavar(ctx))
        elif isinstance(param, click.Option) and param.required:
            words.append(f"{param.opts[0]} {_placeholder(param)}")
    return "\n  ".join(dict.fromkeys([" ".join(words), *getattr(ctx.command, "examples", ())[:1]]))


def _mistake(ctx: click.Context, text: str, line: str | None = None) -> click.UsageError:
    # Without the context: the line to type comes last, where the eye is.
    where = f"See '{ctx.command_path} --help', or write:\n  {line or _usage(ctx)}"
    return click.UsageError(f"{text} {where}")


def _about_option(ctx: click.Context, name: str) -> str:
    """What an unknown option may have been meant as."""
    flags = _flags(ctx)
    text = f"there is no option {name}."
    if near := difflib.get_close_matches(name, flags, n=1, cutoff=_ALIKE):
        return f"{text} Did you mean {near[0]}?"
    if "--set" in flags:
        text += f" A value of the recipe is set by --set {name.lstrip('-')}=VALUE."
    return text


def _check_values(ctx: click.Context, words: Sequence[str]) -> None:
    """An option that swallowed the next option as its value."""
    flags = _flags(ctx)
    for word, following in itertools.zip_longest(words, words[1:]):
        if word == "--":
            return
        param = flags.get(word)
        if param is None or param.is_flag:
            continue
        value = _placeholder(param)
        if following is None or (not following and isinstance(param.type, click.Path)):
            typed = [*ctx.command_path.split(), *filter(None, words)]
            text = f"{word} needs a value behind it{_first_sentence(param.help)}."
            raise _mistake(ctx, text, f"{shlex.join(typed)} {value}")
        if following in flags:
            raise _mistake(
                ctx,
                f"{word} needs a value, but the next word is the option {following}.",
                f"{ctx.command_path} ... {word} {value} {following} ...",
            )


def _check_required(ctx: click.Context, words: Sequence[str], found: dict[str, object]) -> None:
    """All that is missing at once."""
    names, added = [], []
    for param in ctx.command.get_params(ctx):
        value = found.get(param.name or "")
        # click's parser says None or a mark of its own, by version, where nothing was given.
        given = isinstance(value, str) or (isinstance(value, list | tuple) and value)
        if given or not param.required:
            continue
        if isinstance(param, click.Argument):
            raise _mistake(ctx, f"Missing argument {param.make_metavar(ctx)}.")
        if isinstance(param, click.Option):
            names.append(f"{param.opts[0]}{_first_sentence(param.help)}")
            added.append(f"{param.opts[0]} {_placeholder(param)}")
    if names:
        line = shlex.join([*ctx.command_path.split(), *words])
        raise _mistake(ctx, f"Missing option {' and '.join(names)}.", f"{line} {' '.join(added)}")


def _about_extra(ctx: click.Context, words: Sequence[str], extra: str) -> str:
    """Which option a value without one is likely to belong to."""
    flags = _flags(ctx)
    given = {param.name for word, param in flags.items() if word in words}
    # What must be given comes first, and a number is not taken for a path.
    fitting = [
        param
        for param in flags.values()
        if param.name not in given and not param.is_flag and _takes(param, extra, ctx)
    ]
    start = f"{extra!r} belongs to no argument and no option"
    if not fitting:
        return f"{start}."
    best = min(fitting, key=lambda param: not param.required)
    return (
        f"{start}: a value stands behind its flag. Did you mean {best.opts[0]}"
        f" {shlex.quote(extra)}?"
    )


def _takes(param: click.Option, word: str, ctx: click.Context) -> bool:
    """Whether `word` looks like a value of this option: numbers for numbers, words for others."""
    if isinstance(param.type, click.types.StringParamType | click.Path):
        return param.required and not (word[:1].isdigit() or word[:1] == ".")
    try:
        param.type.convert(word, param, ctx)
    except click.ClickException:
        return False
    return True


def _flags(ctx: click.Context) -> dict[str, click.Option]:
    return {
        name: param
        for param in ctx.command.get_params(ctx)
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


def _placeholder(param: click.Option) -> str:
    """What stands for the value in a line: OUT for --out."""
    return param.metavar or max(param.opts, key=len).lstrip("-").upper()


def _first_sentence(text: str | None) -> str:
    found = (text or "").partition(". ")[0].rstrip(".")
    return f" ({found[:1].lower()}{found[1:]})" if found else ""


class Command(click.Command):
    """A command with --json, -q, -v and --debug whose callback gets an `Output` as its object.

    The callback returns an exit code or None. `examples` are lines shown as they are in --help.
    """

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings["show_default"] = True
        self.examples = examples.strip().splitlines()
        flags = (
            (["--json", "as_json"], "One JSON document on stdout."),
            (["-q", "--quiet"], "No progress, no notes."),
            (["-v", "--verbose"], "At the end: kernels, threads, memory, what fell back to dense."),
            (["--debug"], "Show the traceback of an error."),
        )
        self.params += [click.Option(names, is_flag=True, help=text) for names, text in flags]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it; first, what was forgotten is told with the line to type."""
        check_words(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the callback with stdout guarded, then write its result."""
        start, is_verbose = time.monotonic(), ctx.params.pop("verbose")
        ctx.params.pop("debug")
        # The command as typed after `gossamer`.
        name = ctx.command_path.partition(" ")[2]
        ctx.obj = out = Output(name, ctx.params.pop("as_json"), ctx.params.pop("quiet"))
        if is_verbose and out.quiet:
            raise click.UsageError("-q and -v contradict each other: leave out one of them.")
        with out.guard_stdout():
            code = super().invoke(ctx)
        out.flush()
        for line in details(start) if is_verbose else ():
            out.note(line)
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
