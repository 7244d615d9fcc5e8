# SPDX-License-Identifier: Apache-2.0
"""What every table is, whatever its form: sizes, how it is called, and its rows.

A table has no mask: it is a kind of its own beside the sparse layers. `rows()` is what `matrix()`
is to them.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.parts import Form
from gossamer.nn.layers.tables.following import Following
from gossamer.ops.table import Bags, Rounding, Rows

MODES = ("sum", "mean")


class TableLayer(nn.Module, ABC):
    """An `nn.Embedding` or `nn.EmbeddingBag` whose rows may be codes.

    Attributes:
        kind: "table", its row in the table of layer kinds (`nn/layer_kinds.py`).
        form: "trained" or "packed".
        mode: how bags are pooled, "sum" or "mean"; None where each id gives its row.
        num_embeddings: ids that can be looked up.
        embedding_dim: numbers of a row.
        padding_idx: an id that does not count in bags and gets no gradient.
        rounding: how rows become codes; None for float32.
        row_map: int32 [num_embeddings], the row of each id, where rows were folded; else None.
    """

    kind: ClassVar[str] = "table"
    # What the ordinary layer has, and a table does not do.
    max_norm: ClassVar[None] = None
    norm_type: ClassVar[float] = 2.0
    scale_grad_by_freq: ClassVar[bool] = False
    form: ClassVar[Form]
    # Names of the tensors that it consists of, that of the rows first.
    TENSORS: ClassVar[tuple[str, ...]]
    row_map: torch.Tensor | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        rounding: Rounding | None,
        mode: str | None,
        include_last_offset: bool = False,
    ) -> None:
        super().__init__()
        if num_embeddings < 0 or embedding_dim < 1:
            raise InputError(
                f"table: needs ids and at least one column, got {num_embeddings} x {embedding_dim}."
            )
        if mode is not None and mode not in MODES:
            raise InputError(f"table: mode must be 'sum' or 'mean', got {mode!r}.")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise InputError(
                f"table: padding_idx must be an id below {num_embeddings}, got {padding_idx}."
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        self.padding_idx = padding_idx
        self.rounding = rounding
        self.mode, self.include_last_offset = mode, include_last_offset
        self.sparse = False  # of the ordinary layer: gradients are always of touched rows

    @abstractmethod
    def rows(self) -> Rows:
        """The rows as kernels see them; a view, never a copy."""

    @property
    def following(self) -> Following | None:
        """What a scale that follows lookups is made of; None without one."""
        return None

    @property
    def stock_name(self) -> str:
        """The ordinary layer that it stands for."""
        return "Embedding" if self.mode is None else "EmbeddingBag"

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Shape of the table that it stands for."""
        return self.num_embeddings, self.embedding_dim

    @property
    def bits(self) -> int | None:
        """Of a code; None for float32."""
        return None if self.rounding is None else self.rounding.bits

    @property
    def granularity(self) -> str:
        """What shares a scale: "table" or "row"."""
        return "table" if self.rounding is None else self.rounding.granularity

    @torch.no_grad()
    def dense_weight(self) -> torch.Tensor:
        """A copy of the table as lookups see it, [num_embeddings, embedding_dim]; no gradients."""
        rows = self.rows()
        floats = rows.floats()
        return floats if rows.row_map is None else floats.index_select(0, rows.row_map.long())

    def to_dense(self) -> nn.Embedding | nn.EmbeddingBag:
        """An ordinary layer that gives the same: rows are rounded, and folded ones are spread."""
        settings: dict[str, Any] = {"padding_idx": self.padding_idx, "device": "meta"}
        dense: nn.Embedding | nn.EmbeddingBag
        if self.mode is None:
            dense = nn.Embedding(*self.weight_shape, **settings)
        else:
            settings |= {"mode": self.mode, "include_last_offset": self.include_last_offset}
            dense = nn.EmbeddingBag(*self.weight_shape, **settings)
        dense.weight = nn.Parameter(self.dense_weight())
        dense.sparse = self.sparse
        return dense.train(self.training)

    def _bags(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
    ) -> Bags:
        if self.mode is None:
            # As torch does: the row of the padding is looked up, it only gets no gradient.
            return Bags.single(ids)
        padding = -1 if self.padding_idx is None else self.padding_idx
        return Bags.of(ids, offsets, weights, self.mode, padding, self.include_last_offset)

    def _shaped(self, y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return y.view(*ids.shape, self.embedding_dim) if self.mode is None else y

    def extra_repr(self) -> str:
        """Sizes and rounding, as nn.Embedding prints its own."""
        parts = [f"{self.num_embeddings}, {self.embedding_dim}"]
        if self.mode is not None:
            parts.append(f"mode={self.mode}")
        if self.padding_idx is not None:
            parts.append(f"padding_idx={self.padding_idx}")
        parts.append(f"bits={self.bits}, granularity={self.granularity}")
        if self.row_map is not None:
            parts.append(f"rows={len(self.rows().data)}")
        return ", ".join(parts)


def table_of(module: nn.Module) -> TableLayer | None:
    """The module, if it is a table in a form of gossamer's."""
    return module if isinstance(module, TableLayer) else None


def check_stock(stock: nn.Embedding | nn.EmbeddingBag) -> None:
    """Raise InputError for what tables do not do: silently other results are worse."""
    where = f"table: a {type(stock).__name__} with"
    if stock.max_norm is not None:
        raise InputError(f"{where} max_norm rewrites its rows in forward; leave max_norm out.")
    if stock.scale_grad_by_freq:
        raise InputError(f"{where} scale_grad_by_freq is not supported; leave it out.")
    if isinstance(stock, nn.EmbeddingBag) and stock.mode not in MODES:
        raise InputError(f"{where} mode={stock.mode!r} is not supported; modes are sum and mean.")
    if not isinstance(stock._parameters.get("weight"), nn.Parameter):
        raise InputError(f"{where}out a weight of its own (parametrized) is not supported.")
    if stock.weight.dtype is not torch.float32:
        raise InputError(f"{where} {stock.weight.dtype} rows: tables are float32. Call .float().")
