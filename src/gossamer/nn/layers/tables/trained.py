# SPDX-License-Identifier: Apache-2.0
"""Tables while they are trained: rows are rounded when they are looked up (DQRM, arXiv 2410.20046).

With a shadow `.weight` is a float32 Parameter; a lookup rounds the rows it touches, then pools them
(the public code rounds the pooled sum, which is wrong for several ids), and passes gradients
straight through, to the touched rows only. There is never a second table. Without a shadow the
codes themselves are trained, by an optimizer on rows with stochastic rounding.

The scale of a table is exact every `period` steps and follows the largest number that was touched
in between. Scales of rows are found in the lookup and always exact.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables.base import TableLayer, check_stock
from gossamer.nn.layers.tables.following import MOST_CLIPPED, Following
from gossamer.ops.table import Bags, Rounding, Rows, encode_rows, pool, settled
from gossamer.ops.table.training import Seen, trained_pool

PERIOD: Final = 200

Trained = TypeVar("Trained", bound="TrainedTable")


@dataclass(frozen=True)
class Quantising:
    """How a table is trained.

    Attributes:
        bits: 8, 4 or 2; None trains float32 rows as they are.
        granularity: what shares a scale, "table" or "row".
        period: steps from one exact pass over the table to the next.
        half_scale: scales are fp16 numbers, so that `io.torch_bags.export_bag_4bit` is exact.
        shadow: False trains codes of 8 or 4 bits in place, with a scale for each row.
    """

    bits: int | None = 4
    granularity: str = "table"
    period: int = PERIOD
    half_scale: bool = False
    shadow: bool = True

    def __post_init__(self) -> None:
        rounding = self.rounding()
        if not isinstance(self.period, int) or self.period < 1:
            raise InputError(f"table: period must be a whole number of steps, got {self.period!r}.")
        trains_codes = rounding is not None and rounding.by_row and self.bits in (8, 4)
        if not self.shadow and (not trains_codes or self.half_scale):
            raise InputError(
                "table: without a shadow, codes of 8 or 4 bits are trained, with float32 scales of"
                " rows: bits=8 or 4, granularity='row', half_scale=False."
            )

    def rounding(self) -> Rounding | None:
        """How rows become codes."""
        given: Any = self.granularity
        return None if self.bits is None else Rounding(self.bits, given, self.half_scale)


class TrainedTable(TableLayer):
    """A table in the form that is trained; see the module.

    Args:
        num_embeddings, embedding_dim, padding_idx: as nn.Embedding has them.
        mode, include_last_offset: as nn.EmbeddingBag has them; mode None for nn.Embedding.
        num_rows: rows that are stored, if several ids share one.
        device: where tensors are made.
        quantising: `bits`, `granularity`, `period`, `half_scale`, `shadow` of `Quantising`.

    Attributes:
        top: the largest magnitude that the scale of the table is made of.
        counts: int64 [2]: steps until the next exact pass, and numbers that were clipped so far.
    """

    form = "trained"
    TENSORS = ("weight", "row_map", "scales", "top", "counts")
    top: torch.Tensor | None
    counts: torch.Tensor | None
    scales: torch.Tensor | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mode: str | None = None,
        include_last_offset: bool = False,
        num_rows: int | None = None,
        device: Any = None,
        **quantising: Any,
    ) -> None:
        how = Quantising(**quantising)
        rounding, shadow = how.rounding(), how.shadow
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, rounding, mode, include_last_offset
        )
        self.quantising = how
        self._looked_up = 0
        stored = num_embeddings if num_rows is None else num_rows
        has_map = num_rows is not None
        room = {"device": device}
        self.register_buffer(
            "row_map", torch.zeros(num_embeddings, dtype=torch.int32, **room) if has_map else None
        )
        weight = torch.empty(stored, embedding_dim, **room).normal_()
        if padding_idx is not None and not has_map:
            weight[padding_idx] = 0
        if shadow or rounding is None:
            self.weight = nn.Parameter(weight)
            self.register_buffer("scales", None)
        elif weight.is_meta:
            codes = torch.empty(
                stored, rounding.row_bytes(embedding_dim), dtype=torch.uint8, **room
            )
            self.weight = nn.Parameter(codes, requires_grad=False)
            self.register_buffer("scales", torch.empty(stored, **room))
        else:
            codes, scales = encode_rows(weight, rounding)
            self.weight = nn.Parameter(codes, requires_grad=False)
            self.register_buffer("scales", scales)
        follows = rounding is not None and not rounding.by_row
        self.register_buffer("top", torch.zeros((), **room) if follows else None)
        self.register_buffer(
            "counts", torch.zeros(2, dtype=torch.int64, **room) if follows else None
        )
        if follows and not weight.is_meta:
            self.refresh()

    def rows(self) -> Rows:
        """The rows as kernels see them."""
        scales = self.scales
        if self.top is not None and self.rounding is not None:
            scales = self.rounding.scales_of(self.top).reshape(1)
        return Rows(self.weight, self.embedding_dim, self.rounding, scales, self.row_map)

    @property
    def following(self) -> Following | None:
        """See `TableLayer`."""
        if self.top is None or self.counts is None:
            return None
        return Following(self.top, self.counts, self._looked_up)

    @property
    def scale(self) -> torch.Tensor | None:
        """The scales of the table now: [1], or [rows]; None for float32."""
        if self.rounding is None:
            return None
        scales = self.rows().scales
        return self.rounding.scales(self.weight.detach()) if scales is None else scales

    @property
    def clipped(self) -> int:
        """Numbers that were looked up in training and were beyond the largest code."""
        return 0 if self.counts is None else int(self.counts[1])

    @torch.no_grad()
    def refresh(self) -> None:
        """The exact pass: the scale of the table from all its numbers."""
        if self.top is None or self.counts is None:
            return
        top = self.rows().top()
        _check_finite(top)
        self.top.fill_(top)
        self.counts[0] = self.quantising.period

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rows of ids, or bags of them, as nn.Embedding and nn.EmbeddingBag give them."""
        if self.training and self.counts is not None and int(self.counts[0]) <= 0:
            self.refresh()
        bags = self._bags(input, offsets, per_sample_weights)
        rows = self.rows()
        if not torch.is_grad_enabled() or not (self.weight.requires_grad or self._trains_codes()):
            y, seen = pool(rows, bags)
            self._note(seen, bags)
            return self._shaped(y, input)
        counts = bags
        if self.mode is None and self.padding_idx is not None:
            counts = Bags.single(input, self.padding_idx)
        y = trained_pool(rows, bags, lambda seen: self._note(seen, bags), counts)
        return self._shaped(y, input)

    def _trains_codes(self) -> bool:
        return self.training and not self.weight.is_floating_point()

    @torch.no_grad()
    def _note(self, seen: Seen, bags: Bags) -> None:
        """Follow the largest number; count the steps and what was clipped."""
        if self.rounding is None or not self.training:
            return
        _check_finite(seen.top)
        if self.top is None or self.counts is None:
            return
        if seen.top > float(self.top):
            self.top.fill_(seen.top)
        numbers = len(bags.ids) * self.embedding_dim
        self._looked_up += numbers
        many = seen.clipped > MOST_CLIPPED * numbers
        steps = 0 if many else int(self.counts[0]) - 1
        self.counts.copy_(torch.tensor([steps, int(self.counts[1]) + seen.clipped]))

    @classmethod
    def from_dense(
        cls: type[Trained],
        stock: nn.Embedding | nn.EmbeddingBag,
        *,
        bits: int | None = 4,
        granularity: str = "table",
        period: int = PERIOD,
        half_scale: bool = False,
        shadow: bool = True,
    ) -> Trained:
        """A trained table in the place of an ordinary one, whose Parameter is its shadow.

        Raises:
            InputError: it has max_norm, scale_grad_by_freq, mode "max" or another dtype.
        """
        check_stock(stock)
        settings: dict[str, Any] = {"padding_idx": stock.padding_idx}
        if isinstance(stock, nn.EmbeddingBag):
            settings |= {"mode": stock.mode, "include_last_offset": stock.include_last_offset}
        table = cls(
            stock.num_embeddings,
            stock.embedding_dim,
            **settings,
            bits=bits,
            granularity=granularity,
            period=period,
            half_scale=half_scale,
            shadow=shadow,
            device="meta",
        )
        table.take(stock.weight)
        table.sparse = stock.sparse
        return table.train(stock.training)

    @torch.no_grad()
    def take(self, weight: torch.Tensor) -> None:
        """Hold this table: a Parameter is shared, not copied, unless codes are trained."""
        self._to_real(weight.device)
        if self.scales is not None and self.rounding is not None:
            codes, scales = encode_rows(weight, self.rounding)
            self.weight = nn.Parameter(codes, requires_grad=False)
            self.scales = scales
            return
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        settled(self.weight)
        self.refresh()

    def _to_real(self, device: torch.device) -> None:
        """Small tensors of a table that was made on the meta device."""
        for name in ("top", "counts"):
            held = self._buffers.get(name)
            if held is not None and held.is_meta:
                self._buffers[name] = torch.zeros_like(held, device=device)


class Embedding(TrainedTable):
    """`nn.Embedding` whose rows are rounded when they are looked up; see `TrainedTable`."""


class EmbeddingBag(TrainedTable):
    """`nn.EmbeddingBag` whose rows are rounded, then pooled; see `TrainedTable`."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mode: str | None = "mean",
        **more: Any,
    ) -> None:
        if mode is None:
            raise InputError("table: an EmbeddingBag has mode 'sum' or 'mean'.")
        super().__init__(num_embeddings, embedding_dim, padding_idx, mode=mode, **more)


def _check_finite(top: float) -> None:
    if not math.isfinite(top):
        raise InputError(
            "table: a row that was looked up holds NaN or an infinity, which have no code. A"
            " gradient was not finite before: lower the learning rate, or clip gradients."
        )
