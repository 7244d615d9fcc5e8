# SPDX-License-Identifier: Apache-2.0
"""What pruning did to a model, as a Report."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.formats import FORMATS, choose_format
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.prunable import left_dense, left_lines
from gossamer.pruning import LayerResult
from gossamer.report import LayerRow, Report

_CONV_NOTE = "its kernel depends on the image size: gossamer.compile(model, example=x)"

Evaluate = Callable[[nn.Module], float]


def measure_quality(evaluate: Evaluate | None, model: nn.Module, when: str) -> float | None:
    """What `evaluate` says, as a number; None if there is none."""
    if evaluate is None:
        return None
    value = evaluate(model)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"evaluate: must return one number, got {type(value).__name__} {when} pruning."
        ) from error


def make_report(
    model: nn.Module,
    results: Sequence[LayerResult],
    bytes_dense: int,
    notes: Sequence[str] = (),
    quality_dense: float | None = None,
    quality_sparse: float | None = None,
) -> Report:
    """The dense and the pruned model side by side; time is added by who measures it.

    `bytes_dense` are those of the model with its zeros.
    """
    rows = [layer_row(result) for result in results]
    num_pruned = sum(result.numel - result.nnz for result in results)
    num_weights = sum(result.numel for result in results)
    num_parameters = sum(param.numel() for param in model.parameters())
    # A slim model has no pruned layers, and nothing of it was left out.
    left = left_dense(model) if results else []
    return Report(
        sparsity=num_pruned / num_weights if num_weights else 0.0,
        global_sparsity=num_pruned / num_parameters if num_parameters else 0.0,
        bytes_dense=bytes_dense,
        bytes_sparse=bytes_dense - sum(row.bytes_dense - row.bytes_sparse for row in rows),
        quality_dense=quality_dense,
        quality_sparse=quality_sparse,
        layers=rows,
        left_dense=left,
        notes=[*notes, *left_lines(left)],
    )


def layer_row(result: LayerResult) -> LayerRow:
    """One line of a report: bytes in the smallest format beside dense."""
    shape, pattern = result.matrix_shape, result.pattern
    name = choose_format(shape, result.nnz, result.itemsize, pattern)
    notes = [_CONV_NOTE] if result.kind == "Conv2d" else []
    if result.nnz == 0:
        notes.append("no weight is kept")
    if result.tied:
        notes.append(f"shares its weight with {', '.join(result.tied)}")
    return LayerRow(
        name=result.name,
        kind=result.kind,
        shape=result.shape,
        pattern=str(pattern),
        sparsity=1.0 - result.nnz / result.numel if result.numel else 0.0,
        nnz=result.nnz,
        bytes_dense=result.numel * result.itemsize,
        bytes_sparse=FORMATS.get(name).nbytes(shape, result.nnz, result.itemsize, pattern),
        format=name,
        note="; ".join(notes),
    )


def dense_bytes(model: nn.Module) -> int:
    """Bytes a dense checkpoint holds: distinct parameters and saved buffers, masks left out."""
    masks = {id(layer.mask_bits) for _, layer in sparse_layers(model)}
    held = {id(value): value for value in model.state_dict(keep_vars=True).values()}
    return sum(
        tensor.nbytes
        for key, tensor in held.items()
        if key not in masks and isinstance(tensor, torch.Tensor)
    )
