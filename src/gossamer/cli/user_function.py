# SPDX-License-Identifier: Apache-2.0
"""`--model`: files and packaged models, or `module:function`, the user's own code.

Only what is typed on the command line is ever imported; no file, recipe or artifact names code.
"""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.cli.demo_models import DEMO_PREFIX
from gossamer.cli.sources import ZOO_PREFIX, load_source
from gossamer.errors import GossamerError, InputError

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_function(text: str) -> Callable[[], Any]:
    """Makes the model that `text` names, or what the user's function returns."""
    is_source = text.startswith((ZOO_PREFIX, DEMO_PREFIX)) or Path(text).exists()
    if is_source or _FUNCTION.fullmatch(text) is None:
        return lambda: load_source(text).model.train()
    name, _, attribute = text.partition(":")
    # As `python -m` does: modules of the folder one stands in are found first.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"--model {text}: the module {name!r} cannot be imported ({error}). Run from the folder"
            " that holds it, or set PYTHONPATH."
        ) from error
    except Exception as error:
        raise InputError(
            f"--model {text}: the module raised {type(error).__name__}: {error}. Add --debug to see"
            " where."
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(
            f"--model {text}: {name} has no function {attribute!r}; expected one without arguments"
            " that returns a torch module or a gossamer.train.tasks.Task."
        )

    def call() -> Any:
        try:
            return function()
        except GossamerError:
            raise
        except Exception as error:
            raise InputError(
                f"--model {text}: the function raised {type(error).__name__}: {error}. Add --debug"
                " to see where."
            ) from error

    return call
