# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line: directories, files, demos, the user's own functions.

`load_source` gives the model behind a text, `check_source` says what is wrong with the text before
anything is loaded, `origin` is a model to be loaded later, and `find_function` finds a function of
the user's.
"""

from gossamer.cli.models.bare_checkpoint import is_bare, read_bare
from gossamer.cli.models.sources import (
    DEMO_MODELS,
    check_source,
    demo_path,
    find_function,
    is_function,
    load_function,
    load_source,
    origin,
    source_path,
)

__all__ = [
    "DEMO_MODELS",
    "check_source",
    "demo_path",
    "find_function",
    "is_bare",
    "is_function",
    "load_function",
    "load_source",
    "origin",
    "read_bare",
    "source_path",
]
