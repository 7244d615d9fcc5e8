# SPDX-License-Identifier: Apache-2.0
"""The plug-in axes: which zeros are legal, which weights matter, how they are stored and run.

Only names registered here can appear in a recipe or a file; nothing is ever imported by name.
"""

from collections.abc import Callable

import gossamer.ops.linear.fp32  # noqa: F401  (built-in kernels take their names first)
from gossamer.formats import FORMATS, Format
from gossamer.ops.dispatch import Kernel, Prepare, ops_table
from gossamer.patterns import PATTERNS, Pattern
from gossamer.pruning.scorers import register_scorer as scorer

__all__ = ["format", "op", "pattern", "scorer"]


def pattern(name: str, parse: Callable[[str], Pattern]) -> None:
    """Make `name` and `name:...` legal pattern texts; `parse` reads the whole text."""
    PATTERNS.add(name, parse)


def format(name: str, implementation: Format) -> None:
    """Add a storage format; `gossamer.testing.check_format(name)` says whether it is sound."""
    FORMATS.add(name, implementation)


def op(operation: str, format_name: str) -> Callable[[Prepare], Prepare]:
    """Decorate the function that prepares one weight in `format_name` for `operation`.

    It gets a SparseTensor, packs what it needs once and returns `run(x, bias, activation) -> y`.
    """

    def add(prepare: Prepare) -> Prepare:
        name = f"{operation}/{format_name}"
        ops_table(operation).add(format_name, Kernel(name, lambda sparse: True, prepare))
        return prepare

    return add
