# SPDX-License-Identifier: Apache-2.0
"""Dense and slim models as ONNX files, for other engines."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import GossamerError, InputError
from gossamer.nn.attention import refuse_patterns
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers.tables import table_of
from gossamer.nn.layers.tables.plain import PlainTable
from gossamer.nn.surgery import replace_module


def export_onnx(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    path: os.PathLike[str] | str,
    *,
    output: str | int = 0,
    dynamic: Sequence[str] = (),
    batched: Sequence[str] = (),
) -> Path:
    """Write one ONNX file that computes one output of `model`.

    Args:
        model: made of dense layers; a slim model is. It is exported in eval mode. Packed tables
            stay codes in the file, which takes rows of them apart with plain operators.
        inputs: example tensors by the names of the model's arguments.
        path: the file.
        output: name or place of the tensor in what the model returns; a model that returns a
            tensor has that one only.
        dynamic: names of inputs whose first two dimensions (batch, tokens) may vary; none: the
            file is for the shapes of `inputs`.
        batched: names of inputs whose first dimension alone (batch) may vary.

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
    refuse_patterns(model, "ONNX has no such attention")
    for option, names in (("dynamic", dynamic), ("batched", batched)):
        unknown = sorted(set(names) - set(inputs))
        if unknown:
            raise InputError(f"{option}: {unknown} are not among the inputs {sorted(inputs)}.")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("ONNX export needs two packages: pip install onnx onnxscript.") from error
    wrapper = _OneOutput(model, tuple(inputs), output)
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    varied = {name: {0: batch} for name in batched}
    varied |= {name: {0: batch, 1: tokens} for name in dynamic}
    shapes = tuple(varied.get(name) for name in inputs)
    training = {module: module.training for module in model.modules()}
    try:
        with warnings.catch_warnings(), _quiet(), _plain_tables(wrapper):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                wrapper.eval(),
                tuple(inputs.values()),
                os.fspath(path),
                input_names=list(inputs),
                output_names=[output if isinstance(output, str) else "output"],
                dynamic_shapes=(shapes,) if varied else None,
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of optional packages that it does without."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _plain_tables(model: nn.Module) -> Iterator[None]:
    """Tables in operators that exporters know; afterwards the same layers as before."""
    tables = [(name, table_of(module)) for name, module in model.named_modules()]
    swapped: list[tuple[nn.Module, nn.Module]] = []
    try:
        for name, table in tables:
            if table is not None:
                try:
                    plain = PlainTable(table)
                except InputError as error:
                    raise InputError(f"{name.removeprefix('model.')}: {error}") from error
                replace_module(model, table, plain)
                swapped.append((plain, table))
        yield
    finally:
        for new, old in swapped:
            replace_module(model, new, old)


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
