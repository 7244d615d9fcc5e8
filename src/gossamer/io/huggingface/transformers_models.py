# SPDX-License-Identifier: Apache-2.0
"""transformers models of known families as data: no code and no network from files.

Classes are taken from a closed table. Of a configuration only the fields that the installed
configuration class declares are used: `auto_map`, `attn_implementation` (which can name a kernel
to download) and everything else is dropped unread; what `quantization_config` says of a sparse
format is the business of `compressed_tensors`.
"""

import dataclasses
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.huggingface.dry_run import (
    CONFIG_FILE,
    check_numbers,
    check_runs,
    check_sizes,
    one_layer,
    short,
)
from gossamer.io.safe_files.documents import parse_json
from gossamer.nn.families import answers

_CLASSES = answers("classes").values()
_CONFIGS = {classes.model_type: f"{classes.prefix}Config" for classes in _CLASSES}
# Class name to model_type: the only classes a file can ask for.
TRANSFORMERS_CLASSES: dict[str, str] = {
    classes.prefix + head: classes.model_type for classes in _CLASSES for head in classes.heads
}

# Fields of older files that configuration classes still translate.
_LEGACY_FIELDS = {"rope_theta", "rope_scaling", "num_labels", "torch_dtype"}
# How a call goes about it, not what it computes: ours to choose.
_CALLS = {"return_dict", "chunk_size_feed_forward"}
_DTYPES = ("float32", "float16", "bfloat16", "float64")
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MAX_LAYERS = 10_000
MAX_LABELS = 100_000
MAX_NUMBER = 2**31


def is_transformers(model: nn.Module) -> bool:
    """Whether `model` is a class of transformers itself, and not a subclass of the user's."""
    transformers = sys.modules.get("transformers")
    kind = type(model)
    return transformers is not None and getattr(transformers, kind.__name__, None) is kind


def config_of(model: nn.Module) -> dict[str, Any] | None:
    """What transformers would write to config.json for `model`; None for other models."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return None
    content = parse_json(model.config.to_json_string().encode(), CONFIG_FILE)
    return {**content, "architectures": [type(model).__name__]}


def build_transformers(
    name: str, config: dict[str, Any] | None, *, max_tensors: int, device: str
) -> nn.Module:
    """A model of the table with uninitialised weights on `device`."""
    if config is None:
        raise ArtifactError(f"{CONFIG_FILE}: is missing, but {name} cannot be built without it.")
    model_type = model_type_of(name, config, CONFIG_FILE)
    settings = make_config(model_type, config, max_tensors)
    kind = getattr(import_transformers(), name)
    from transformers.initialization import no_init_weights

    if device == "meta":
        with quiet_transformers(), no_init_weights():
            check_runs(kind, make_config(model_type, one_layer(config), max_tensors))
    try:
        with quiet_transformers(), torch.device(device), no_init_weights():
            return kind(settings)  # type: ignore[no-any-return]
    except Exception as error:
        raise ArtifactError(f"{CONFIG_FILE}: {name} refuses it ({short(error, 300)}).") from error


def make_config(model_type: str, content: dict[str, Any], max_layers: int) -> Any:
    """The configuration object, from declared fields with bounded values only."""
    kind = getattr(import_transformers(), _CONFIGS[model_type])
    if dataclasses.is_dataclass(kind):
        declared = {field.name for field in dataclasses.fields(kind)}
    else:
        declared = set(inspect.signature(kind.__init__).parameters) - {"self", "kwargs"}
    known = (declared | _LEGACY_FIELDS) - _CALLS
    fields = {name: value for name, value in content.items() if name in known}
    for name, value in fields.items():
        _check_value(name, value, max_layers)
    check_sizes(fields)
    try:
        with quiet_transformers():
            config = kind(**fields)
    except Exception as error:
        reason = short(error, 300)
        raise ArtifactError(f"{CONFIG_FILE}: transformers refuses it ({reason}).") from error
    check_numbers(config, fields)
    return config


def _check_value(name: str, value: Any, max_layers: int) -> None:
    if name in ("dtype", "torch_dtype") and value is not None and value not in _DTYPES:
        raise ArtifactError(f"{CONFIG_FILE}: {name} {ascii(value)[:40]} is none of {_DTYPES}.")
    limits = dict.fromkeys(_LAYER_COUNTS, min(max_layers, MAX_LAYERS)) | {"num_labels": MAX_LABELS}
    limit = limits.get(name, MAX_NUMBER)
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not -limit <= number <= limit:
            raise ArtifactError(f"{CONFIG_FILE}: {name} is {number}, the limit is {limit}.")


def model_type_of(name: str, config: dict[str, Any], where: str) -> str:
    """The family of a class of the table, if the configuration is of that family too."""
    if name not in TRANSFORMERS_CLASSES:
        raise ArtifactError(
            f"{where}: {name[:80]!a} is not a known transformers class; known:"
            f" {', '.join(TRANSFORMERS_CLASSES)}. Build the model yourself and pass model=."
        )
    expected, found = TRANSFORMERS_CLASSES[name], config.get("model_type")
    if found != expected:
        raise ArtifactError(
            f"{where}: {name} needs model_type {expected!r}, config.json has {ascii(found)[:80]}."
        )
    return expected


def import_transformers() -> Any:
    """The transformers package, or an error that names the extra."""
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "transformers is not installed, but this model needs it: pip install 'gossamer[hf]'."
        ) from error
    return transformers


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars, load reports and warnings: faults become errors here."""
    logging = import_transformers().utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
