# SPDX-License-Identifier: Apache-2.0
"""Dense and slim models as ONNX files, for other engines."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import GossamerError, InputError
from gossamer.nn.layer_kinds import sparse_layers


def export_onnx(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    path: os.PathLike[str] | str,
    *,
    output: str | int = 0,
    dynamic: Sequence[str] = (),
) -> Path:
    """Write one ONNX file that computes one output of `model`.

    Args:
        model: made of dense layers; a slim model is. It is exported in eval mode.
        inputs: example tensors by the names of the model's arguments.
        path: the file.
        output: name or place of the tensor in what the model returns; a model that returns a
            tensor has that one only.
        dynamic: names of inputs whose first two dimensions (batch, tokens) may vary; none: the
            file is for the shapes of `inputs`.

    Returns:
        The file.

    Raises:
        InputError: the packages onnx and onnxscript are missing, or the model has sparse or packed
            layers.
    """
    for name, module in sparse_layers(model, "masked", "compact"):
        raise InputError(
            f"{name}: is a {type(module).__name__}; ONNX has no sparse layers. Call to_dense()"
            " on it first, which stores its zeros."
        )
    unknown = sorted(set(dynamic) - set(inputs))
    if unknown:
        raise InputError(f"dynamic: {unknown} are not among the inputs {sorted(inputs)}.")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("ONNX export needs two packages: pip install onnx onnxscript.") from error
    wrapper = _OneOutput(model, tuple(inputs), output)
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    shapes = tuple({0: batch, 1: tokens} if name in dynamic else None for name in inputs)
    training = {module: module.training for module in model.modules()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                wrapper.eval(),
                tuple(inputs.values()),
                os.fspath(path),
                input_names=list(inputs),
                output_names=["output"],
                dynamic_shapes=(shapes,) if dynamic else None,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        if isinstance(error.__cause__, GossamerError):
            raise error.__cause__ from None  # what a layer said, without the exporter's frame
        raise
    finally:
        for module, mode in training.items():
            module.training = mode
    return Path(path)


class _OneOutput(nn.Module):
    """Positional tensors in, one tensor out: what a graph needs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str | int) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        # A cache in the result is no tensor; models without one take no such argument.
        given: dict[str, Any] = dict(zip(self.names, tensors, strict=True))
        if getattr(getattr(self.model, "config", None), "use_cache", False):
            given["use_cache"] = False
        result = self.model(**given)
        return result if isinstance(result, torch.Tensor) else result[self.output]
