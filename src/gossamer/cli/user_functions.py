# SPDX-License-Identifier: Apache-2.0
"""The user's own functions, named on the command line as `module:function`.

Only what is typed there is ever imported; no file, recipe or artifact names code.
"""

import functools
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.errors import GossamerError, InputError

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_function(text: str) -> bool:
    """Whether `text` looks like `module:function`."""
    return _FUNCTION.fullmatch(text) is not None


def find_function(text: str, option: str, expected: str) -> Callable[..., Any]:
    """The user's function; what it raises is told as a mistake of the user's.

    Args:
        text: `module:function`.
        option: it was given with.
        expected: what kind of function, for messages.
    """
    where = f"{option} {text}"
    if not is_function(text):
        raise InputError(f"{where}: expected module:function, {expected}.")
    name, _, attribute = text.partition(":")
    # As `python -m` does: modules of the folder one stands in are found first.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{where}: the module {name!r} cannot be imported ({error}). Run from the folder"
            " that holds it, or set PYTHONPATH."
        ) from error
    except Exception as error:
        raise InputError(
            f"{where}: the module raised {type(error).__name__}: {error}. Add --debug to see where."
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(f"{where}: {name} has no function {attribute!r}; expected {expected}.")

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except GossamerError:
            raise
        except Exception as error:
            raise InputError(
                f"{where}: the function raised {type(error).__name__}: {error}. Add --debug"
                " to see where."
            ) from error

    return call
