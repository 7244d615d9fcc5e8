# SPDX-License-Identifier: Apache-2.0
"""`gossamer recipe`: list, read, copy and check recipes. Nothing here imports torch."""

import json
from pathlib import Path

from click import argument

from gossamer.cli.options import PATH, set_option
from gossamer.cli.shell import CommandGroup, Output, Verbatim, gossamer_command, table
from gossamer.errors import RecipeError

_LIST = """
gossamer recipe list
gossamer recipe list --json
"""
_SHOW = """
gossamer recipe show sparsegpt-50
gossamer recipe show structured-mac-50
"""
_COPY = """
gossamer recipe copy sparsegpt-50
gossamer recipe copy sparsegpt-2of4 mine.yaml
"""
_VALIDATE = """
gossamer recipe validate mine.yaml
gossamer recipe validate recipes/*.yaml --json
gossamer recipe validate mine.yaml --set sparsity=0.7
"""
_SCHEMA = """
gossamer recipe schema
gossamer recipe schema > recipe.schema.json
"""


@gossamer_command("Built-in recipes.", _LIST, "list")
def list_recipes(out: Output) -> None:
    """Names and descriptions of the built-in recipes, and whether they need calibration data."""
    from gossamer.recipes import builtin_names, load_recipe

    shown = table("recipe", "data", "description")
    rows = []
    for name in builtin_names():
        loaded = load_recipe(name)
        shown.add_row(name, "yes" if loaded.needs_data else "no", loaded.description)
        rows.append(
            {"name": name, "description": loaded.description, "needs_data": loaded.needs_data}
        )
    out.result({"recipes": rows}, shown)


@gossamer_command("Print a built-in recipe.", _SHOW)
@argument("name")
def show(out: Output, name: str) -> None:
    """Print the file of the built-in recipe NAME, comments included."""
    from gossamer.recipes import builtin_text

    text = builtin_text(name)
    out.result({"name": name, "text": text}, Verbatim(text))


@gossamer_command("Copy a built-in recipe.", _COPY)
@argument("name")
@argument("file", metavar="FILE", required=False, type=PATH)
def copy(out: Output, name: str, file: Path | None) -> None:
    """Copy the built-in recipe NAME to FILE, or to NAME.yaml here, for you to edit.

    A file that exists is not overwritten.
    """
    from gossamer.recipes import builtin_text

    text = builtin_text(name)
    target = Path() if file is None else file
    if target.is_dir():
        target /= f"{name}.yaml"
    try:
        with target.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise RecipeError(
            f"{target}: exists already and is not overwritten. Name another file, as in"
            f" 'gossamer recipe copy {name} mine.yaml'."
        ) from error
    out.result({"name": name, "file": str(target)}, f"Copied {name} to {target}.")


@gossamer_command("Check recipe files.", _VALIDATE)
@argument("files", metavar="FILE...", nargs=-1, required=True)
@set_option
def validate(out: Output, files: tuple[str, ...], overrides: tuple[str, ...]) -> int:
    """Check each FILE, or built-in recipe of that name, and tell all faults at once.

    Exit code 0 if all are valid, 2 otherwise.
    """
    from gossamer.recipes import load_recipe
    from gossamer.recipes.faults import RecipeFaults

    text, rows = "", []
    for file in files:
        faults: list[dict[str, object]] = []
        try:
            load_recipe(file, overrides)
            text += f"{file}: valid\n"
        except RecipeError as error:
            text += f"{error}\n"
            faults = [{"source": file, "line": None, "path": "", "message": str(error)}]
            if isinstance(error, RecipeFaults):
                faults = [vars(fault) for fault in error.faults]
        rows.append({"file": file, "valid": not faults, "faults": faults})
    valid = all(row["valid"] for row in rows)
    out.result({"valid": valid, "files": rows}, Verbatim(text))
    return 0 if valid else 2


@gossamer_command("JSON schema of recipes.", _SCHEMA)
def schema(out: Output) -> None:
    """Print the JSON schema of recipe files, which editors complete and check them with."""
    from gossamer.recipes import json_schema

    content = json_schema()
    out.result({"json_schema": content}, Verbatim(json.dumps(content, indent=2) + "\n"))


recipe = CommandGroup(
    "recipe",
    commands=[list_recipes, show, copy, validate, schema],
    short_help="List, read, copy and check recipes.",
    help="List, read, copy and check recipes: YAML files that say how a model is pruned.",
)
