# SPDX-License-Identifier: Apache-2.0
"""`convert` to one file for another engine: ONNX or gguf.

`write_single_file` writes it and gives what to tell: numbers for --json, and sentences.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.artifact.exports import save_gguf, save_onnx
from gossamer.io.huggingface import example_inputs, is_transformers
from gossamer.runs import example_input

__all__ = ["GGUF", "ONNX", "write_single_file"]

ONNX, GGUF = "onnx", "gguf"
# Sizes that an exporter cannot take for constants.
_BATCH, _TOKENS = 2, 9


def write_single_file(
    model: nn.Module, target: Path, form: str, kind: str | None, beside: Mapping[str, bytes]
) -> tuple[dict[str, Any], list[str]]:
    """Write `model` to `target`; gives entries of the document and sentences for people."""
    if form == GGUF:
        written = save_gguf(model, target, kind=kind or "auto", beside=beside)
        said = [f"Types of tensors: {', '.join(f'{n} {k}' for k, n in written.types.items())}."]
        if written.changed:
            said.append(
                f"Rounded as asked: {written.changed} weights changed, by up to"
                f" {written.error:.2%} of the largest of their tensor;"
                f" {written.lost_zeros or 'no'} zeros were lost."
            )
        else:
            said.append("No weight changed; zeros are stored, and this engine multiplies by them.")
        if not written.has_tokenizer:
            said.append("IN has no tokenizer.json, so the file has no tokenizer.")
        return {
            "types": written.types,
            "changed": written.changed,
            "lost_zeros": written.lost_zeros,
            "largest_error": written.error,
            "tokenizer": written.has_tokenizer,
        }, said
    inputs, dynamic, batched = _inputs(model)
    coded = save_onnx(model, target, inputs, dynamic=dynamic, batched=batched)
    said = ["Zeros are stored, and this engine multiplies by them."]
    if coded:
        said.append(
            f"{coded} weights are int8 behind DequantizeLinear, to the bit. ONNX Runtime rounds"
            " what they are multiplied with, too; session.qdq_matmulnbits_accuracy_level=1 leaves"
            " that in float32."
        )
    return {"inputs": list(inputs), "int8_weights": coded}, said


def _inputs(model: nn.Module) -> tuple[dict[str, torch.Tensor], tuple[str, ...], tuple[str, ...]]:
    """Examples by name, those of varying batch and length, those of varying batch."""
    takes = inspect.signature(model.forward).parameters
    if is_transformers(model):
        made = example_inputs(model, _TOKENS, _BATCH)
        if made is not None and set(made) == {"input_ids"} and "attention_mask" in takes:
            made["attention_mask"] = torch.ones_like(made["input_ids"])
            return made, tuple(made), ()
        if made is not None:
            return made, (), tuple(made) if set(made) == {"pixel_values"} else ()
    example = example_input(model, _BATCH)
    if example is None:
        raise InputError(
            f"{type(model).__name__}: nobody knows what it is called with, so it cannot be exported"
            " from here. In Python: gossamer.io.artifact.exports.save_onnx(model, path, inputs)."
        )
    made = example.kwargs or dict(zip(takes, example.args, strict=False))
    return made, (), tuple(made)
