# SPDX-License-Identifier: Apache-2.0
"""transformers models of known families as data: no code and no network from files.

Classes are taken from a closed table. Of a configuration only the fields that the installed
configuration class declares are used: `auto_map`, `attn_implementation` (which can name a kernel
to download) and everything else is dropped unread; what `quantization_config` says of a sparse
format is the business of `compressed_tensors`.

Whether a model of a configuration can run at all is found out before its weights are read. Sizes
are looked at one by one; whether they fit each other is found by running one layer of the model on
the meta device: shapes only, no memory and no numbers.
"""

import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.documents import parse_json
from gossamer.nn.families import answers
from gossamer.nn.families.text import starts_after_padding

CONFIG_FILE = "config.json"
# Sizes of all known families; every one of them must be a whole number from 1 where it is set.
_SIZES = (
    "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "max_position_embeddings", "type_vocab_size", "dim", "n_heads",
    "hidden_dim", "n_embd", "n_head", "n_positions", "n_ctx", "n_inner", "ffn_dim",
    "word_embed_proj_dim",
)  # fmt: skip
_MAY_BE_NONE = ("num_key_value_heads", "head_dim", "n_inner")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers")
_NOT_NEGATIVE = ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon")
_POSITIVE = ("rope_theta", "factor")
_TOKENS = 7
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
    name: str, config: dict[str, Any] | None, *, max_tensors: int, device: str = "meta"
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
            _check_runs(kind, make_config(model_type, _one_layer(config), max_tensors))
    try:
        with quiet_transformers(), torch.device(device), no_init_weights():
            return kind(settings)  # type: ignore[no-any-return]
    except Exception as error:
        raise ArtifactError(f"{CONFIG_FILE}: {name} refuses it ({_short(error, 300)}).") from error


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
    for name in _SIZES:
        value = fields.get(name, 1)
        absent = value is None and name in _MAY_BE_NONE
        if not absent and (type(value) is not int or value < 1):
            raise _fault(name, value, "a whole number from 1")
    try:
        with quiet_transformers():
            config = kind(**fields)
    except Exception as error:
        reason = _short(error, 300)
        raise ArtifactError(f"{CONFIG_FILE}: transformers refuses it ({reason}).") from error
    _check_numbers(config, fields)
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


def _check_numbers(config: Any, content: Mapping[str, Any]) -> None:
    """Refuse other numbers that cannot be.

    Args:
        config: the configuration object, defaults filled in.
        content: what config.json says.
    """
    for name in _DEPTHS:
        value = getattr(config, name, 0)
        if type(value) is not int or value < 0:
            raise _fault(name, value, "a whole number from 0")
    for name in _NOT_NEGATIVE:
        value = getattr(config, name, 0.0)
        if not (_is_number(value) and value >= 0):
            raise _fault(name, value, "a number from 0")
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    for name, place in product(_POSITIVE, (content, rope if isinstance(rope, dict) else {})):
        value = place.get(name, 1.0)
        if not (_is_number(value) and value > 0):
            raise _fault(name, value, "a positive number")
    labels = getattr(config, "id2label", None)
    if labels is not None and set(labels) != set(range(len(labels))):
        raise _fault("id2label", labels, "one name for each label, counted from 0")
    _check_tokens(config)


def _check_runs(make: Callable[[Any], nn.Module], config: Any) -> None:
    """Refuse a configuration whose sizes do not fit each other.

    Args:
        make: builds a model of a configuration.
        config: with one layer at most.
    """
    known = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    tokens = min([_TOKENS, *filter(None, known)])
    ids_BT = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
    try:
        with torch.device("meta"):
            model = make(config).eval()
    except Exception as error:
        raise _unfit(f"the class of the model refuses it ({_short(error, 200)})") from error
    try:
        with torch.device("meta"), torch.no_grad():
            model(ids_BT)
    except Exception as error:
        # What looks at numbers cannot be run without any; that is no fault of the sizes.
        if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
            return
        raise _unfit(f"a model with these sizes cannot run ({_short(error, 200)})") from error


def _one_layer(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration with one layer: what all others are alike to."""
    short = dict(content)
    for name in _DEPTHS:
        if type(short.get(name)) is int:
            short[name] = min(short[name], 1)
    if isinstance(short.get("layer_types"), list):
        short["layer_types"] = short["layer_types"][:1]
    return short


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_tokens(config: Any) -> None:
    padding, size = getattr(config, "pad_token_id", None), config.vocab_size
    if padding is not None and (type(padding) is not int or not -size <= padding < size):
        raise _fault("pad_token_id", padding, f"a token below {size}")
    if starts_after_padding(config):
        if padding is None or padding < 0:
            raise _fault("pad_token_id", padding, "a token from 0")
        positions = config.max_position_embeddings
        if positions <= padding + 1:
            raise _fault("max_position_embeddings", positions, f"over {padding + 1}")


def _short(error: Exception, length: int) -> str:
    """An error of another package in one line."""
    return ascii(f"{type(error).__name__}: {error}")[1:-1][:length]


def _unfit(what: str) -> ArtifactError:
    advice = f"Take the {CONFIG_FILE} that was saved with the weights."
    return ArtifactError(f"{CONFIG_FILE}: {what}. {advice}")


def _fault(name: str, value: Any, expected: str) -> ArtifactError:
    return _unfit(f"{name} is {ascii(value)[:60]}; expected {expected}")
