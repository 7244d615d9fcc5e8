# SPDX-License-Identifier: Apache-2.0
"""What a recipe says, without torch: its schema, its files, and what is wrong with one.

Start with `load_recipe("sparsegpt-50")`, which gives a `Recipe`; `make_recipe` makes one of plain
data and `prune_recipe` one with a single stage. `builtin_names` and `builtin_text` show those that
come with the package, `json_schema` is for editors. `Calibration` says which samples a recipe
takes. `stages` has a file per stage; `faults` and `phrases` tell what is wrong, with lines of the
file (`yaml_lines`); `digest` compares recipes. Names are loaded on first use.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.recipes.editor_schema import json_schema
    from gossamer.recipes.loader import (
        builtin_names,
        builtin_text,
        load_recipe,
        make_recipe,
        prune_recipe,
    )
    from gossamer.recipes.schema import Calibration, Recipe

__all__ = [
    "Calibration",
    "Recipe",
    "builtin_names",
    "builtin_text",
    "json_schema",
    "load_recipe",
    "make_recipe",
    "prune_recipe",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "Calibration": "schema",
        "Recipe": "schema",
        "builtin_names": "loader",
        "builtin_text": "loader",
        "json_schema": "editor_schema",
        "load_recipe": "loader",
        "make_recipe": "loader",
        "prune_recipe": "loader",
    },
)
