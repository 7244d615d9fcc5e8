# SPDX-License-Identifier: Apache-2.0
"""Local Hugging Face directories (config.json and safetensors) as models."""

import os
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.huggingface.auto_tables import known_class
from gossamer.io.huggingface.configurations import CONFIG_FILE, make_config
from gossamer.io.huggingface.quiet import quiet_transformers
from gossamer.io.huggingface.transformers_models import build_transformers
from gossamer.io.pruners.compressed_tensors import expand_bitmasks
from gossamer.io.pruners.plain_checkpoint import apply_masks, fold_pruned, read_tensors_of
from gossamer.io.safe_files.checks import check_memory
from gossamer.io.safe_files.documents import read_object
from gossamer.named_files import is_inside
from gossamer.nn.surgery.known_layers import to_known_layers

# Layers a config.json may ask for where no file says how many tensors there are.
_MAX_SKELETON_TENSORS = 10_000
# A model may need twice what its files hold (tied weights), and so many more: what does not fit in
# a small model is told weight by weight.
_SPARE_WEIGHTS = 2**20

Tensors = dict[str, torch.Tensor]


def load_pretrained(
    directory: os.PathLike[str] | str,
    architecture: str | None = None,
    *,
    max_bytes: int | None = None,
) -> nn.Module:
    """The model in a local Hugging Face directory (config.json and safetensors), in eval mode.

    Every weight the class needs must be there and every weight there must be used: nothing is
    initialised at random and nothing is dropped. Masks that the files hold (sparse-bitmask of
    compressed-tensors, `weight_orig` and `weight_mask` of torch.nn.utils.prune) come back as
    masked layers with their patterns detected. Conv1D layers of GPT-2 become Linears and experts
    become layers: both can be pruned weight by weight.

    Args:
        directory: as written by `save_pretrained`.
        architecture: class name, where config.json names none or another one is wanted.
        max_bytes: refuse models that need more memory; default: what is available.
    """
    folder = Path(directory)
    where = str(folder)
    config = _read_config(folder)
    name = architecture or _architecture_of(config, folder)
    known_class(name, config, where)
    tensors = read_tensors_of(folder)
    masks = expand_bitmasks(tensors, config, where, max_bytes=max_bytes)
    masks |= fold_pruned(tensors, where)
    model = from_tensors(name, config, tensors, where, max_bytes=max_bytes)
    apply_masks(model, masks, where)
    return model


def pretrained_skeleton(folder: Path) -> nn.Module:
    """The class that config.json names, on the meta device; weights need not be there."""
    config = _read_config(folder)
    name = _architecture_of(config, folder)
    return build_transformers(name, config, max_tensors=_MAX_SKELETON_TENSORS)


def from_tensors(
    name: str,
    config: dict[str, Any],
    tensors: Tensors,
    where: str,
    *,
    max_bytes: int | None = None,
) -> nn.Module:
    """The class `name` of transformers with exactly these weights, in eval mode.

    Args:
        name: a class of the auto tables of transformers.
        config: the content of config.json.
        tensors: every weight by its name in a state dict.
        where: what they come from, for messages.
        max_bytes: refuse models that need more memory; default: what is available.
    """
    known = known_class(name, config, where)
    skeleton = build_transformers(name, config, max_tensors=10 * len(tensors) + 100)
    needed = sum(tensor.nbytes for tensor in (*skeleton.parameters(), *skeleton.buffers()))
    check_memory(needed, sum(tensor.nbytes for tensor in tensors.values()), max_bytes, where)
    _check_weights(tensors, skeleton, name, where)
    # transformers gives a model one dtype; the widest loses nothing.
    floats = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    with quiet_transformers():
        model, info = known.model.from_pretrained(
            None,
            config=make_config(known, config, len(tensors)),
            state_dict=tensors,
            dtype=reduce(torch.promote_types, floats or {torch.float32}),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported, and refused below with both shapes
        )
    _check_complete(info, name, where)
    return to_known_layers(model.eval())


def _read_config(folder: Path) -> dict[str, Any]:
    if not is_inside(folder, CONFIG_FILE):
        raise ArtifactError(f"{folder}: has no {CONFIG_FILE}, so the model cannot be built.")
    return read_object(folder, CONFIG_FILE)


def _architecture_of(config: dict[str, Any], folder: Path) -> str:
    match config.get("architectures"):
        case [str(name)]:
            return name
    raise ArtifactError(
        f"{folder}: config.json does not name one architecture; pass architecture='BertModel'"
        " or the like."
    )


def _check_complete(info: dict[str, Any], name: str, where: str) -> None:
    faults = [
        f"{kind.removesuffix('_keys')}: {', '.join(sorted(map(str, info[kind]))[:10])}"
        for kind in ("missing_keys", "unexpected_keys")
        if info.get(kind)
    ]
    faults += [
        f"{key} is {list(found)}, expected {list(expected)}"
        for key, found, expected in sorted(info.get("mismatched_keys", ()))[:10]
    ]
    if faults:
        raise ArtifactError(
            f"{where}: its weights do not fit {name}; {'; '.join(faults)}. Pass architecture= with"
            " the class that was saved."
        )


def _check_weights(tensors: Tensors, skeleton: nn.Module, architecture: str, where: str) -> None:
    # transformers makes weights that are not there, and says so when they fill the memory.
    held = sum(tensor.numel() for tensor in tensors.values())
    needed = sum(parameter.numel() for parameter in skeleton.parameters())
    if needed > 2 * held + _SPARE_WEIGHTS:
        raise ArtifactError(
            f"{where}: its files hold {held} weights, but {architecture} of this {CONFIG_FILE}"
            f" needs {needed}. Take the {CONFIG_FILE} that was saved with the weights."
        )
    # Integers in the place of a weight would be cast without a word.
    wanted = {**skeleton.state_dict()}
    base = f"{getattr(skeleton, 'base_model_prefix', '')}."
    wanted |= {name.removeprefix(base): tensor for name, tensor in wanted.items()}
    for name, tensor in tensors.items():
        slot = wanted.get(name, wanted.get(name.removeprefix(base)))
        if slot is not None and slot.is_floating_point() and not tensor.is_floating_point():
            raise ArtifactError(
                f"{where}: {name} is {tensor.dtype}, expected floating point weights. Quantised"
                " checkpoints must be dequantised by the tool that wrote them."
            )
