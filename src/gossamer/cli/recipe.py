# SPDX-License-Identifier: Apache-2.0
"""`gossamer recipe`: list, read, copy, check and convert recipes. Nothing here imports torch."""

import json
from pathlib import Path

from click import IntRange, argument, option

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

_CONVERT = """
gossamer recipe convert sparseml_recipe.md --task images
gossamer recipe convert oneshot.yaml mine.yaml
gossamer recipe convert obert.yaml mine.yaml --steps-per-epoch 1000 --nearest
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
    _write_new(target, text, f"gossamer recipe copy {name} mine.yaml")
    out.result({"name": name, "file": str(target)}, f"Copied {name} to {target}.")


def _write_new(target: Path, text: str, example: str) -> None:
    """Write a file that does not exist yet."""
    try:
        with target.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise RecipeError(
            f"{target}: exists already and is not overwritten. Name another file, as in"
            f" '{example}'."
        ) from error


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


@gossamer_command("Convert a recipe of SparseML or llm-compressor.", _CONVERT)
@argument("source", metavar="RECIPE", type=PATH)
@argument("file", metavar="FILE", required=False, type=PATH)
@option("--task", help="What a train stage learns: images, text, labelled.")
@option("--steps-per-epoch", type=IntRange(min=1), help="Optimizer steps of an epoch.")
@option("--nearest", is_flag=True, help="Tell differences instead of refusing them.")
def convert(
    out: Output,
    source: Path,
    file: Path | None,
    task: str | None,
    steps_per_epoch: int | None,
    nearest: bool,
) -> None:
    """Print RECIPE, a file of SparseML or llm-compressor, as a recipe of gossamer, or write FILE.

    What has no equal here is refused with its modifier, field and line. With --nearest it is told,
    also in comments of the new file. A file that exists is not overwritten.
    """
    from gossamer.recipes.foreign import convert_recipe
    from gossamer.recipes.yaml_lines import read_file

    raw = read_file(source, RecipeError)
    if raw is None:
        raise RecipeError(f"{source}: there is no such file.")
    made = convert_recipe(
        raw, source.name, task=task, steps_per_epoch=steps_per_epoch, nearest=nearest
    )
    if file is not None:
        _write_new(file, made.text, f"gossamer recipe convert {source} other.yaml")
    result = {"file": file and str(file), "text": made.text, "differences": list(made.differences)}
    told = "".join(f"differs: {line}\n" for line in made.differences)
    out.result(result, Verbatim(made.text if file is None else f"{told}Wrote {file}.\n"))


@gossamer_command("JSON schema of recipes.", _SCHEMA)
def schema(out: Output) -> None:
    """Print the JSON schema of recipe files, which editors complete and check them with."""
    from gossamer.recipes import json_schema

    content = json_schema()
    out.result({"json_schema": content}, Verbatim(json.dumps(content, indent=2) + "\n"))


recipe = CommandGroup(
    "recipe",
    commands=[list_recipes, show, copy, validate, convert, schema],
    short_help="List, read, copy, check and convert recipes.",
    help="List, read, copy, check and convert recipes: YAML files that say how a model is pruned.",
)
