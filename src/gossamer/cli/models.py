# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line: directories, files, demos, the user's own functions.

`load_source` gives the model behind a text, `check_source` says what is wrong with the text before
anything is loaded, and `origin` is a model to be loaded later; `load_function` makes one to be
trained. Where the files are, says `places.py`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.cli.places import (
    DEMO_MODELS,
    DEMO_PREFIX,
    HUB_NAME,
    demo_path,
    is_demo,
    source_path,
)
from gossamer.cli.user_functions import find_function, is_function
from gossamer.errors import InputError
from gossamer.runs.sources import Origin, Source, check_path, load_path
from gossamer.zoo import MLP, TinyEncoder

__all__ = [
    "DEMO_MODELS",
    "check_source",
    "demo_path",
    "load_function",
    "load_source",
    "origin",
    "source_path",
]


ZOO_PREFIX = "zoo:"
# Big enough for sparse kernels to matter, small enough to be built at once.
_ZOO: dict[str, Callable[[], nn.Module]] = {
    "mlp": partial(MLP, (64, 768, 768, 8)),
    "tiny-encoder": partial(TinyEncoder, 1000, 8, width=256, num_layers=2, ffn_width=1024),
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
        path = source_path(text)
        if not path.exists() and HUB_NAME.fullmatch(text):
            others += (
                ". The hub cache of this machine has no model of that name either, and nothing is"
                f" fetched unasked: hf download {text}"
            )
        check_path(path, text, others=others, bare=bare)


def load_function(text: str, say: Callable[[str], None] = lambda line: None) -> Callable[[], Any]:
    """Makes the model that `--model` names, for training; a user's function may return a task."""
    if not _is_own(text):
        return lambda: load_source(text, say=say).model.train()
    expected = "one without arguments that returns a torch module or a gossamer.data.tasks.Task"
    return find_function(text, "--model", expected)


def _is_own(text: str) -> bool:
    is_source = text.startswith((ZOO_PREFIX, DEMO_PREFIX)) or Path(text).exists()
    return not is_source and is_function(text)
