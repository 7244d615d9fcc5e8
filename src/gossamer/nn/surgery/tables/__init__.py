# SPDX-License-Identifier: Apache-2.0
"""All tables of a model at once: quantised for training, or packed as they are.

A table whose Parameter another module holds too, such as an output layer, stays one copy: it is
gathered from and multiplied with. The product sees what lookups see (`TiedLinear`).
"""

from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables import Embedding, EmbeddingBag, TableLayer
from gossamer.nn.surgery.replace import inherit_hooks, replace_module
from gossamer.nn.surgery.tables.tied import TiedLinear
from gossamer.nn.surgery.unchanged import unchanged_on_error

__all__ = ["TiedLinear", "as_trained", "is_ordinary_table", "quantize_tables"]

_STOCK = (nn.Embedding, nn.EmbeddingBag)


def quantize_tables(
    model: nn.Module,
    bits: int | None = 4,
    *,
    granularity: str = "table",
    period: int = 200,
    half_scale: bool = False,
    shadow: bool = True,
) -> dict[str, TableLayer]:
    """Replace every `torch.nn.Embedding` and `EmbeddingBag` of a model, in place.

    Parameters stay the same objects (unless `shadow` is False), so an optimizer that holds them
    goes on. To give tables different settings, call `from_dense` of the layers themselves.

    Args:
        model: any module with tables; nothing is changed if one of them cannot be replaced.
        bits: 8, 4 or 2; None for float32 rows with native kernels and sparse gradients.
        granularity: what shares a scale: "table" or "row".
        period: steps from one exact pass over a table to the next.
        half_scale: scales are fp16 numbers, for an exact export.
        shadow: False trains codes in place, without float32 rows.

    Returns:
        The new tables by name.

    Raises:
        InputError: there is no table, or one that is not supported.
    """
    found = {name: module for name, module in model.named_modules() if is_ordinary_table(module)}
    if not found:
        raise InputError(f"quantize_tables: {type(model).__name__} holds no torch.nn.Embedding.")
    heads = _heads(model, found)
    if heads and not shadow:
        raise InputError(
            f"quantize_tables: {next(iter(heads))} multiplies with a table, which needs its float32"
            " rows for gradients. Use shadow=True."
        )
    settings: dict[str, Any] = {
        "bits": bits,
        "granularity": granularity,
        "period": period,
        "half_scale": half_scale,
        "shadow": shadow,
    }
    made: dict[str, TableLayer] = {}
    with unchanged_on_error(model):
        for name, stock in found.items():
            try:
                table = as_trained(stock, **settings)
            except InputError as error:
                raise InputError(f"{name or 'model'}: {error}") from error
            inherit_hooks(table, stock)
            replace_module(model, stock, table)
            made[name] = table
        by_weight = {id(table.get_parameter("weight")): table for table in made.values()}
        for head in heads.values():
            tied = TiedLinear(by_weight[id(head.weight)], head.bias)
            inherit_hooks(tied, head)
            replace_module(model, head, tied)
    return made


def is_ordinary_table(module: nn.Module) -> bool:
    """Whether it is a `torch.nn.Embedding` or `EmbeddingBag`, and nothing derived from them."""
    return type(module) in _STOCK


def as_trained(ordinary: Any, **settings: Any) -> TableLayer:
    """The trained form of an ordinary table, whose Parameter it shares; see `quantize_tables`."""
    kind = Embedding if isinstance(ordinary, nn.Embedding) else EmbeddingBag
    return kind.from_dense(ordinary, **settings)


def _heads(model: nn.Module, tables: dict[str, nn.Module]) -> dict[str, nn.Linear]:
    """Linear layers that multiply with the Parameter of a table."""
    weights = {id(table._parameters["weight"]) for table in tables.values()}
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and id(module.weight) in weights
    }
