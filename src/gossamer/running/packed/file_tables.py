# SPDX-License-Identifier: Apache-2.0
"""Ordinary tables of a model that int8 or int4 files gave: looked up from their codes."""

from collections.abc import Iterator

from torch import nn

from gossamer.nn.layers.tables.gridded import GridTable, gridded
from gossamer.nn.surgery.carried import carried
from gossamer.nn.surgery.tables import is_ordinary_table
from gossamer.ops import Problem, kernels_for
from gossamer.running.choice import Choice

__all__ = ["tables_on_grids"]


def tables_on_grids(model: nn.Module, count: int) -> Iterator[tuple[nn.Module, GridTable]]:
    """(table, its packed form) of every table that is on a grid and that nobody else multiplies by.

    Args:
        model: in eval mode.
        count: of tokens, for `explain`.
    """
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for module in list(model.modules()):
        if not is_ordinary_table(module) or carried(module) is not None:
            continue
        if uses[id(module._parameters["weight"])] > 1:
            continue  # one copy, that is gathered from and multiplied with
        packed = gridded(module)  # type: ignore[arg-type]
        if packed is not None:
            (kernel,) = kernels_for("table", Problem(packed.rows(), "int4"))
            dense = packed.num_embeddings * packed.embedding_dim * 4
            smaller = dense / max(packed.nbytes, 1)
            why = f"its numbers are on a grid: the same bits, {smaller:.2g}x smaller than float32"
            packed.choices = (Choice(count, kernel.name, why),)
            yield module, packed
