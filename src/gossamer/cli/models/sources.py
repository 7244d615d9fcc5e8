# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line: a directory, a file, `demo:NAME`, `zoo:NAME`, `module:function`."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.cli.models.demo_models import DEMO_MODELS, DEMO_PREFIX, demo_path
from gossamer.cli.models.user_function import find_function, is_function
from gossamer.errors import InputError
from gossamer.runs import Origin, Source, check_path, load_path
from gossamer.zoo import MLP, TinyEncoder

ZOO_PREFIX = "zoo:"
# Big enough for sparse kernels to matter, small enough to be built at once.
_ZOO: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP((64, 768, 768, 8)),
    "tiny-encoder": lambda: TinyEncoder(1000, 8, width=256, num_layers=2, ffn_width=1024),
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
    if text.startswith(ZOO_PREFIX):
        return Source(_from_zoo(text.removeprefix(ZOO_PREFIX)), text, None)
    if _is_own(text):
        return Source(_own(text), text, None)
    check_source(text)
    path = source_path(text)
    name = text if is_demo(text) else path.resolve().name
    return load_path(path, name, say, detect_masks=detect_masks)


def origin(text: str) -> Origin:
    """The model that `text` names, to be loaded later."""
    return Origin(
        text, functools.partial(check_source, text), lambda say: load_source(text, say=say)
    )


def check_source(text: str, *, bare: bool = False) -> None:
    """Raise if `text` names no model, or a file that cannot be one; nothing is loaded.

    Args:
        text: MODEL as it was typed.
        bare: whether tensors without an architecture will do.
    """
    if text.startswith(ZOO_PREFIX):
        _check_zoo(text.removeprefix(ZOO_PREFIX))
        return
    if _is_own(text):
        return
    known = [ZOO_PREFIX + name for name in _ZOO] + [DEMO_PREFIX + name for name in DEMO_MODELS]
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


def _own(text: str) -> nn.Module:
    expected = "one without arguments that returns a torch module"
    model = find_function(text, "MODEL", expected)()
    if not isinstance(model, nn.Module):
        raise InputError(
            f"MODEL {text}: the function returned a {type(model).__name__}; expected {expected}."
        )
    return model.eval()


def source_path(text: str) -> Path:
    """Where the files of `text` are."""
    if is_demo(text):
        return demo_path(text.removeprefix(DEMO_PREFIX))
    return Path(text)


def is_demo(text: str) -> bool:
    """Whether `text` is a packaged model: `demo:NAME`, or NAME where no file is called so."""
    return text.startswith(DEMO_PREFIX) or (text in DEMO_MODELS and not Path(text).exists())


def _check_zoo(name: str) -> None:
    if name not in _ZOO:
        raise InputError(
            f"{ZOO_PREFIX}{name}: there is no such zoo model; expected one of"
            f" {', '.join(ZOO_PREFIX + known for known in _ZOO)}."
        )


def _from_zoo(name: str) -> nn.Module:
    _check_zoo(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _ZOO[name]().eval()
