# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line: directories, files, demos, the user's own functions.

`load_source` gives the model behind a text, `check_source` says what is wrong with the text before
anything is loaded, `example_input` makes up an input to time it with, and `find_function` finds a
function of the user's.
"""

from gossamer.cli.models.bare_checkpoint import is_bare, read_bare
from gossamer.cli.models.demo_models import DEMO_MODELS, demo_path
from gossamer.cli.models.sources import check_source, load_function, load_source, source_path
from gossamer.cli.models.user_function import find_function, is_function
from gossamer.runs import Example, Source, directory_bytes, example_input, tensor_bytes

__all__ = [
    "DEMO_MODELS",
    "Example",
    "Source",
    "check_source",
    "demo_path",
    "directory_bytes",
    "example_input",
    "find_function",
    "is_bare",
    "is_function",
    "load_function",
    "load_source",
    "read_bare",
    "source_path",
    "tensor_bytes",
]
