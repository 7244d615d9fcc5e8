# SPDX-License-Identifier: Apache-2.0
"""What a recipe says, without torch: its schema, its files, and what is wrong with one.

Start with `load_recipe("sparsegpt-50")`, which gives a `Recipe`; `stages/` has a file per stage.
`parse_yaml`, `field_words`, `Fault` and `near` read and judge other files of the same kind. Names
are loaded on first use.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.recipes.digest import content_differences, recipe_content, recipe_digest
    from gossamer.recipes.editor_schema import json_schema
    from gossamer.recipes.faults import Fault, RecipeFaults, field_words, near, plain, show
    from gossamer.recipes.fractions import is_percentage, parse_fraction
    from gossamer.recipes.loader import (
        builtin_names,
        builtin_text,
        load_recipe,
        make_recipe,
        prune_recipe,
    )
    from gossamer.recipes.schema import Calibration, Recipe, Stage
    from gossamer.recipes.yaml_lines import MAX_BYTES, parse_yaml

__all__ = [
    "MAX_BYTES",
    "Calibration",
    "Fault",
    "Recipe",
    "RecipeFaults",
    "Stage",
    "builtin_names",
    "builtin_text",
    "content_differences",
    "field_words",
    "is_percentage",
    "json_schema",
    "load_recipe",
    "make_recipe",
    "near",
    "parse_fraction",
    "parse_yaml",
    "plain",
    "prune_recipe",
    "recipe_content",
    "recipe_digest",
    "show",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "MAX_BYTES": "yaml_lines",
        "Calibration": "schema",
        "Fault": "faults",
        "Recipe": "schema",
        "RecipeFaults": "faults",
        "Stage": "schema",
        "builtin_names": "loader",
        "builtin_text": "loader",
        "content_differences": "digest",
        "field_words": "faults",
        "is_percentage": "fractions",
        "json_schema": "editor_schema",
        "load_recipe": "loader",
        "make_recipe": "loader",
        "near": "faults",
        "parse_fraction": "fractions",
        "parse_yaml": "yaml_lines",
        "plain": "faults",
        "prune_recipe": "loader",
        "recipe_content": "digest",
        "recipe_digest": "digest",
        "show": "faults",
    },
)
