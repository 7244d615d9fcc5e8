# SPDX-License-Identifier: Apache-2.0
"""Recipes of SparseML and llm-compressor, read and written as recipes of gossamer.

`convert_recipe` takes the bytes of such a file, YAML or the front matter of a Markdown page, and
gives a `Conversion`: the text of a recipe that does the same. What has no equal here is a fault
with its line, or, where `nearest` is asked for, a difference that the new file tells in comments.
Nothing here imports torch, and nothing of the file is run.
"""

from gossamer.recipes.foreign.convert import Conversion, convert_recipe

__all__ = ["Conversion", "convert_recipe"]
