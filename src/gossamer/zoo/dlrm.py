# SPDX-License-Identifier: Apache-2.0
"""DLRM: numbers and categories to the chance of a click (arXiv 1906.00091).

Legend: B rows of data, N numbers, C categories (one table each), D width, F = C + 1 vectors that
interact.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layers.tables.late_rows import LateRows, give_rows, is_late, untouched
from gossamer.nn.layers.tables.together import PackedTogether
from gossamer.zoo.arguments import MAX_LAYERS, ZooArgs, check_choice, check_size
from gossamer.zoo.mlp import MLP

MAX_TABLES = 4096
_DIGEST_BYTES = 32
_SEED_STEP = 0xD1B54A32D192ED03  # between tables


class DLRM(nn.Module):
    """Numbers go through a bottom MLP, each category through its table; dots of all pairs follow.

    The top MLP gets the bottom's vector and the dots, and gives one logit. Where there are no
    numbers, the sum of the tables' vectors stands in for the bottom's.

    Args:
        num_numbers: N; 0 leaves the bottom MLP out.
        rows: of each table; empty leaves tables and dots out.
        width: D, the same for all tables: their vectors are multiplied with each other.
        bottom: inner sizes of the bottom MLP.
        top: inner sizes of the top MLP.
        pooling: of several ids of one category: "sum" or "mean".

    Attributes:
        tables: a stock `EmbeddingBag` per category, which a converter may replace.
        features_digest: uint8 [32], SHA-256 of the vocabularies that ids come from; zeros: unknown.
    """

    features_digest: torch.Tensor

    def __init__(
        self,
        num_numbers: int,
        rows: Sequence[int],
        *,
        width: int = 16,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (64, 32),
        pooling: str = "sum",
    ) -> None:
        super().__init__()
        self.num_numbers = check_size("DLRM: num_numbers", num_numbers, low=0)
        check_size("DLRM: len(rows)", len(rows), low=0, high=MAX_TABLES)
        self.rows = tuple(check_size("DLRM: rows", size) for size in rows)
        self.width = check_size("DLRM: width", width)
        self.bottom_sizes, self.top_sizes = (
            tuple(check_size(f"DLRM: {name}", size) for size in sizes)
            for name, sizes in (("bottom", bottom), ("top", top))
        )
        for name, sizes in (("bottom", bottom), ("top", top)):
            check_size(f"DLRM: len({name})", len(sizes), low=0, high=MAX_LAYERS)
        self.pooling = check_choice("DLRM: pooling", pooling, ("sum", "mean"))
        if not num_numbers and not rows:
            raise InputError("DLRM: needs numbers or tables; got num_numbers 0 and no rows.")
        self.bottom: nn.Module | None = None
        if num_numbers:
            self.bottom = MLP((num_numbers, *self.bottom_sizes, width))
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(size, width, mode=pooling, _weight=untouched(size, width))
            for size in rows
        )
        num_vectors = len(self.rows) + bool(num_numbers)
        num_dots = num_vectors * (num_vectors - 1) // 2
        self.top = MLP((width + num_dots, *self.top_sizes, 1))
        empty = torch.zeros(_DIGEST_BYTES, dtype=torch.uint8)
        self.register_buffer("features_digest", empty)
        self._together = PackedTogether()
        self._initialise()

    def _initialise(self) -> None:
        """Tables uniform in +-sqrt(1 / rows), as published; the MLPs as torch does it.

        A row is a function of one number from the global generator, its table and its own number.
        """
        if not self.rows or self.features_digest.device.type != "cpu":
            return
        seed = int(torch.randint(2**62, ()))
        for number, size in enumerate(self.rows):
            table: Any = self.tables[number]
            own = LateRows(seed + number * _SEED_STEP, sqrt(1 / size), size, self.width)
            give_rows(table, own)

    def zoo_args(self) -> ZooArgs:
        """The arguments that build this model again."""
        return {
            "num_numbers": self.num_numbers,
            "rows": self.rows,
            "width": self.width,
            "bottom": self.bottom_sizes,
            "top": self.top_sizes,
            "pooling": self.pooling,
        }

    def forward(
        self,
        numbers_BN: torch.Tensor,
        ids: torch.Tensor | Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor] | None = None,
        weights: Sequence[torch.Tensor | None] | None = None,
    ) -> torch.Tensor:
        """Logits [B] of a click.

        Args:
            numbers_BN: float [B, N].
            ids: int [B, C], one id of each category; or, with `offsets`, C vectors of ids.
            offsets: C vectors [B], where the ids of each row of data begin; a row may have none.
            weights: C vectors like `ids`, or None for weights of 1; pooling must be "sum".
        """
        self._check(numbers_BN, ids, offsets, weights)
        first = None if self.bottom is None else self.bottom(numbers_BN)
        joined = None
        if offsets is None and self.rows and isinstance(ids, torch.Tensor):
            joined = self._together.pairs(self.tables, ids, first)
        if joined is None:
            joined = self._joined(first, self._looked_up(ids, offsets, weights))
        logits: torch.Tensor = self.top(joined).squeeze(-1)
        return logits

    def _joined(self, bottom_BD: torch.Tensor | None, vectors: list[torch.Tensor]) -> torch.Tensor:
        """What the top MLP gets: the bottom's vector, and the dots of all pairs."""
        stacked_BFD = torch.stack(vectors if bottom_BD is None else [bottom_BD, *vectors], dim=1)
        first_BD = stacked_BFD.sum(dim=1) if bottom_BD is None else bottom_BD
        dots_BFF = stacked_BFD @ stacked_BFD.transpose(1, 2)
        # Below the diagonal: every pair once, no vector with itself.
        count = dots_BFF.shape[1]
        first, second = torch.tril_indices(count, count, offset=-1, device=dots_BFF.device)
        dots_BP = dots_BFF[:, first, second]
        return torch.cat([first_BD, dots_BP], dim=1)

    def _check(
        self,
        numbers_BN: torch.Tensor,
        ids: torch.Tensor | Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor] | None,
        weights: Sequence[torch.Tensor | None] | None,
    ) -> None:
        if numbers_BN.ndim != 2 or numbers_BN.shape[1] != self.num_numbers:
            raise InputError(
                f"DLRM: expected numbers [rows, {self.num_numbers}], got {list(numbers_BN.shape)}."
            )
        if any(map(is_late, self.tables)):
            raise InputError("DLRM: its tables are to be cut, and have no rows yet.")
        count = len(self.rows)
        if offsets is None:
            if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or ids.shape[1] != count:
                got = list(ids.shape) if isinstance(ids, torch.Tensor) else f"{len(ids)} vectors"
                raise InputError(
                    f"DLRM: expected ids [rows, {count}], got {got}. Several ids of a category"
                    " need offsets."
                )
            return
        for name, given in (("ids", ids), ("offsets", offsets), ("weights", weights or offsets)):
            if len(given) != count:
                raise InputError(f"DLRM: expected {name} of {count} tables, got {len(given)}.")

    def _looked_up(
        self,
        ids: torch.Tensor | Sequence[torch.Tensor],
        offsets: Sequence[torch.Tensor] | None,
        weights: Sequence[torch.Tensor | None] | None,
    ) -> list[torch.Tensor]:
        """[B, D] of each table."""
        if offsets is None:
            # A row of the transpose is contiguous only once it is copied.
            columns = torch.as_tensor(ids).t().contiguous()
            return [table(columns[i].unsqueeze(1)) for i, table in enumerate(self.tables)]
        return [
            table(ids[i], offsets[i], None if weights is None else weights[i])
            for i, table in enumerate(self.tables)
        ]
