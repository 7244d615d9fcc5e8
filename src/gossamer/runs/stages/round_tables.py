# SPDX-License-Identifier: Apache-2.0
"""Tables of a `round` stage: codes instead of float32 rows, and one row for ids that are rare."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.layers.tables import (
    TableLayer,
    fold_rows,
    packed_table,
    table_of,
)
from gossamer.nn.surgery import replace_module
from gossamer.nn.surgery.tables import as_trained, is_ordinary_table
from gossamer.pruning.calibration.flow import evaluating
from gossamer.recipes.stages import Round
from gossamer.runs.stages.base import StageInput

_FLOAT_BITS = 32
_COUNTED_TOGETHER = 4096


def round_tables(model: nn.Module, step: Round, ignored: set[str], given: StageInput) -> str:
    """Change the tables of `model` in place; what was done, for people."""
    how = step.tables
    if how is None:
        return ""
    found = {
        name: module
        for name, module in model.named_modules()
        if name not in ignored and (is_ordinary_table(module) or table_of(module) is not None)
    }
    if not found:
        raise InputError(f"round.tables: {type(model).__name__} has no embedding table.")
    _check_alone(model, found)
    counts = {} if how.min_count is None else _counts(model, found, given)
    before = after = 0
    for name, module in found.items():
        try:
            table = _shadowed(module, how)
            if how.min_count is not None:
                table = fold_rows(table, counts[name], min_count=how.min_count, shared=how.shared)
            made = packed_table(table) if _becomes_packed(table, how.form) else table
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        before += made.num_embeddings
        after += len(made.rows().data)
        replace_module(model, module, made)
    folded = "" if how.min_count is None else f", {before} rows to {after}"
    bits = "their" if how.bits is None else how.bits
    return f"{len(found)} tables to {bits} bits ({how.form}){folded}"


def _becomes_packed(table: TableLayer, form: str) -> bool:
    return form == "packed" and table.form == "trained"


def _shadowed(module: nn.Module, how: Any) -> TableLayer:
    """The table with float32 rows, rounded as asked when it is looked up; or as it is."""
    held = table_of(module)
    bits = None if how.bits == _FLOAT_BITS else how.bits
    if held is None:
        if how.bits is None:
            raise InputError("round.tables: is an ordinary table; say to how many bits.")
        return as_trained(module, bits=bits, granularity=how.granularity)
    wanted = ("trained", bits, how.granularity if bits else "table")
    if how.bits is not None and (held.form, held.bits, held.granularity) != wanted:
        raise InputError(
            f"round.tables: is {held.form} in {held.bits or _FLOAT_BITS} bits by"
            f" {held.granularity}; expected an ordinary table, or one that was trained in"
            f" {how.bits} bits by {how.granularity}. bits: null takes it as it is."
        )
    return held


def _check_alone(model: nn.Module, tables: Mapping[str, nn.Module]) -> None:
    """A table whose Parameter another layer multiplies with cannot become codes here."""
    held = {id(p): name for name, module in tables.items() for p in module.parameters()}
    inside = {id(module) for module in tables.values()}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(module) not in inside and id(parameter) in held:
                raise InputError(
                    f"round.tables: {name} multiplies with the rows of {held[id(parameter)]}. Use"
                    " embeddings: int8 instead, or ignore that table."
                )


def _counts(
    model: nn.Module, tables: Mapping[str, nn.Module], given: StageInput
) -> dict[str, torch.Tensor]:
    """How often the data look up each id of each table."""
    batches: Iterable[Batch]
    if given.samples is not None:
        batches = given.samples.in_order(_COUNTED_TOGETHER)
    else:
        batches = given.needed_batches("round.tables.min_count")
    seen: dict[str, torch.Tensor] = {}
    handles = []
    for name, module in tables.items():
        rows: Any = module
        seen[name] = torch.zeros(rows.num_embeddings, dtype=torch.int64)

        def note(_: nn.Module, inputs: tuple[Any, ...], into: torch.Tensor = seen[name]) -> None:
            into += torch.bincount(inputs[0].reshape(-1), minlength=len(into))

        handles.append(module.register_forward_pre_hook(note))
    try:
        with evaluating(model), torch.no_grad():
            for batch in batches:
                batch.run(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen
