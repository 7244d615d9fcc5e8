# SPDX-License-Identifier: Apache-2.0
"""All tables of a model in one native call: rows of one id each, and the dots of all pairs.

Rows and dots of a few samples are computed together, so that rows are still in the cache, and no
table costs a call of its own. Every kernel set and number of threads give the same bits; the dots
are summed in another order than by torch.

Legend: B samples, C tables, D width, F vectors of a sample (C, and one more if it is given).
"""

from collections.abc import Sequence

import torch

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address, runs_native
from gossamer.ops.kernels import active_kernels
from gossamer.ops.table.rows import Rows

__all__ = ["TablePairs"]

_WHERE = "tables"


class TablePairs:
    """Looks up one id of each table: `pairs(ids_BC, first_BD) -> [B, D + F (F - 1) / 2]`.

    Args:
        tables: of one width, as they are or codes; checked here once, and kept.
        paddings: of each table, an id whose row counts as zeros; -1 for none.
    """

    def __init__(self, tables: Sequence[Rows], paddings: Sequence[int]) -> None:
        for rows in tables:
            rows.check(_WHERE)
        self._held = tuple(tables)
        self.width = tables[0].width
        self._native = _native.TableSet([rows.native() for rows in tables], list(paddings))

    def takes(self, ids_BC: torch.Tensor, first_BD: torch.Tensor | None) -> bool:
        """Whether native code can read them as they are."""
        return (
            ids_BC.dtype is torch.int64
            and ids_BC.ndim == 2
            and (first_BD is None or first_BD.dtype is torch.float32)
            and runs_native(ids_BC, first_BD)
        )

    def __call__(self, ids_BC: torch.Tensor, first_BD: torch.Tensor | None) -> torch.Tensor:
        """`first`, or else the sum of the rows; behind it the dots (1, 0), (2, 0), (2, 1), ...

        Raises:
            InputError: shapes do not fit, or an id is outside of its table; nothing was read then.
        """
        count = len(self._held)
        batch = len(ids_BC)
        if ids_BC.shape != (batch, count):
            raise InputError(f"tables: expected ids [rows, {count}], got {list(ids_BC.shape)}.")
        if first_BD is not None and first_BD.shape != (batch, self.width):
            raise InputError(
                f"tables: expected vectors [{batch}, {self.width}], got {list(first_BD.shape)}."
            )
        vectors = count + (first_BD is not None)
        out = torch.empty(batch, self.width + vectors * (vectors - 1) // 2)
        given = (address(ids_BC, _WHERE), batch, address(first_BD, _WHERE))
        try:
            self._native.pairs(*given, address(out, _WHERE), active_kernels())
        except IndexError as error:
            raise InputError(f"tables: {error}.") from error
        return out
