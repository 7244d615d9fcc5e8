# SPDX-License-Identifier: Apache-2.0
"""The reference of public names and of commands, made of docstrings and help texts.

Public are the names of `gossamer` itself, those of the rooms that it names, and every further name
that a page of the documentation imports: what a page shows is what a reader may rely on.
"""

import importlib
import inspect
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import click

import gossamer
from gossamer.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r"^from (gossamer[\w.]*) import ([\w, ]+|\([\w, \n]+\))", re.M)
_DOTTED = re.compile(r"\b(gossamer(?:\.[a-z_]\w*)+)(?:\.([A-Z]\w*))?")


def public_names() -> dict[str, set[str]]:
    """Module -> its public names."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in gossamer.__all__:
        thing = getattr(gossamer, name)
        if isinstance(thing, ModuleType):
            found[thing.__name__] |= set(getattr(thing, "__all__", own_classes(thing)))
        else:
            found["gossamer"].add(name)
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
            for module, names in _IMPORT.findall(code):
                for name in re.findall(r"\w+", names):
                    add(found, module, name)
            for path, name in _DOTTED.findall(code):
                module, _, last = path.rpartition(".")
                if name:
                    add(found, path, name)
                elif module:
                    add(found, module, last)
    return dict(sorted(found.items()))


def own_classes(module: ModuleType) -> list[str]:
    """Classes that a module without `__all__` defines."""
    return [
        name
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and thing.__module__ == module.__name__ and name[0] != "_"
    ]


def add(found: dict[str, set[str]], module: str, name: str) -> None:
    """Note a name that a page uses, if it is one of a module and not a module itself."""
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError:
        return  # a method of a class: gossamer.nn.Linear.from_dense
    thing = getattr(home, name, None)
    if thing is not None and not isinstance(thing, ModuleType):
        found[module].add(name)


def write_reference(folder: Path) -> list[str]:
    """A page per module and one of all commands; returns them, for a table of contents."""
    folder.mkdir(parents=True)
    for module, names in public_names().items():
        (folder / f"{module}.rst").write_text(module_page(module, sorted(names)))
    (folder / "commands.md").write_text(commands_page())
    pages = sorted(path.name for path in folder.iterdir())
    lines = [
        "# Python",
        "",
        "Everything a page of this site uses, and every name of `gossamer` itself. Names that are"
        " not here may change without notice.",
        "",
        "```{toctree}",
        *(page for page in pages if page.endswith(".rst")),
        "```",
    ]
    (folder / "python.md").write_text("\n".join(lines))
    return ["names/python.md", "names/commands.md"]


def module_page(module: str, names: list[str]) -> str:
    """The docstring of a module, then its names."""
    home = importlib.import_module(module)
    lines = [module, "=" * len(module), "", f".. py:module:: {module}", ""]
    lines += [inspect.getdoc(home) or "", ""]
    for name in names:
        thing = getattr(home, name)
        if inspect.isclass(thing):
            lines += [f".. autoclass:: {module}.{name}", ""]
        elif callable(thing):
            lines += [f".. autofunction:: {module}.{name}", ""]
        else:
            lines += [f".. py:data:: {module}.{name}", ""]
    return "\n".join(lines)


def commands_page() -> str:
    """What `--help` says, command by command."""
    lines = ["# Commands", "", "What `--help` prints.", ""]
    context = click.Context(cli, info_name="gossamer")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None, name
        lines += help_of(command, click.Context(command, info_name=name, parent=context), 2)
    return "\n".join(lines)


def help_of(command: click.Command, context: click.Context, depth: int) -> list[str]:
    context.terminal_width = context.max_content_width = 100
    lines = [f"{'#' * depth} {context.command_path}", "", "```text", command.get_help(context)]
    lines += ["```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                inner = click.Context(below, info_name=name, parent=context)
                lines += help_of(below, inner, depth + 1)
    return lines
