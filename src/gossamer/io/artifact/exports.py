# SPDX-License-Identifier: Apache-2.0
"""Models as single files of other engines: ONNX and gguf. Zeros are stored there like any weight.

Whatever form layers are in, the file has their dense weights; the model itself is not changed.
"""

import copy
import os
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, ResourceError
from gossamer.io.artifact.inventory import Slot, as_stored, take_inventory, unwrap
from gossamer.io.gguf import Written, write_gguf
from gossamer.io.huggingface import config_of
from gossamer.io.onnx import codes_in_file, export_onnx
from gossamer.io.safe_files.directories import AnyPath
from gossamer.nn.forms import to_dense
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery import replace_module

__all__ = ["save_gguf", "save_onnx"]

# Protocol buffers cannot be larger.
_MAX_ONNX_BYTES = 2**31 - 2**20


def save_gguf(
    model: nn.Module, path: AnyPath, *, kind: str = "auto", beside: Mapping[str, bytes]
) -> Written:
    """Write a decoder of transformers as one gguf file, whole or not at all.

    Args:
        model: in whatever form.
        path: the file.
        kind: type of its matrices; "auto" is for each the smallest one that changes no weight.
        beside: the files beside the model that was read; the tokenizer goes into the file.

    Raises:
        InputError: not a decoder that gguf files hold; the text says what they cannot.
    """
    stored = as_stored(unwrap(model))
    config = config_of(stored)
    if config is None:
        raise InputError(
            f"{type(model).__name__}: gguf files hold decoders of transformers. Use the format"
            " 'onnx' or 'dense' instead."
        )
    inventory = take_inventory(stored)
    tensors: dict[str, Callable[[], torch.Tensor]] = {}
    for name, slot in inventory.slots.items():
        owner = inventory.slots.get(inventory.tied.get(name, ""))
        # A head with a mask of its own is another tensor than the table it is tied to.
        if slot.is_parameter and (owner is None or slot.layer is not owner.layer):
            tensors[name] = partial(_as_linear, slot)
    return write_gguf(stored, tensors, Path(path), kind=kind, beside=beside)


def _as_linear(slot: Slot) -> torch.Tensor:
    """The weight with rows of outputs, which GPT-2's own layers have as columns."""
    dense = slot.dense()
    return dense.t() if type(slot.module).__name__ == "Conv1D" and dense.ndim == 2 else dense


def save_onnx(
    model: nn.Module,
    path: AnyPath,
    inputs: Mapping[str, torch.Tensor],
    *,
    dynamic: tuple[str, ...] = (),
    batched: tuple[str, ...] = (),
) -> int:
    """Write what a model computes as one ONNX file, whole or not at all.

    Weights that are on the grid of int8 are stored as codes with a DequantizeLinear behind them,
    to the last bit; everything else is float32, zeros included.

    Args:
        model: in whatever form; it is exported in float32 and eval mode.
        path: the file.
        inputs: examples by the names of arguments; see `gossamer.io.onnx.export_onnx`.
        dynamic: names of inputs whose batch and length may vary.
        batched: names of inputs whose batch alone may vary.

    Returns:
        How many weights are stored as int8.

    Raises:
        InputError: torch cannot export the model, or it is larger than a file of ONNX may be.
    """
    dense = _dense_copy(model)
    size = sum(tensor.nbytes for tensor in dense.parameters())
    if size > _MAX_ONNX_BYTES:
        raise InputError(
            f"{type(model).__name__}: {size} bytes of weights; one ONNX file holds 2 GiB at most."
            " Use the format 'dense'."
        )
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        output = _first_output(dense, inputs)
        export_onnx(dense, inputs, unfinished, output=output, dynamic=dynamic, batched=batched)
        coded = codes_in_file(unfinished)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0][:300]
        raise InputError(
            f"{type(model).__name__}: torch cannot export it to ONNX ({reason}). Use the format"
            " 'dense'."
        ) from error
    except OSError as error:
        raise ResourceError(
            f"{path}: cannot be written ({error.strerror or error}). What was there before is"
            " unchanged. Free some space or choose another path."
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return coded


def _dense_copy(model: nn.Module) -> nn.Module:
    """An ordinary model with the same weights, float32; tables that are codes stay codes."""
    made = copy.deepcopy(as_stored(unwrap(model)))
    for _, layer in list(sparse_layers(made)):
        replace_module(made, layer, to_dense(layer))
    return made.float().eval()


def _first_output(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> str | int:
    """Name of the first tensor that a model returns; 0 where it returns a tensor or a tuple."""
    with torch.no_grad():
        found: Any = model(**inputs)
    return next(iter(found.keys())) if hasattr(found, "keys") else 0
