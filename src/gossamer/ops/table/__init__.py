# SPDX-License-Identifier: Apache-2.0
"""Tables (embeddings): gather + dequantise + pool, and the update of rows that were looked up.

`Rows` is a table wherever it is kept (floats, floats rounded on the way, codes), `Bags` a batch,
`Rounding` how numbers become codes (`encode_rows`). `pool` looks up, `PackedRows` many times,
`pairs` in many tables at once.
`training` has lookups with gradients and steps of optimizers. Importing this room lists its kernels
under the operation "table".
"""

from gossamer.ops.table.bags import Bags
from gossamer.ops.table.inference import PackedRows
from gossamer.ops.table.lookup import pool
from gossamer.ops.table.quantiser import Rounding, pack_codes
from gossamer.ops.table.rows import Rows, encode_rows, settled

__all__ = [
    "Bags",
    "PackedRows",
    "Rounding",
    "Rows",
    "encode_rows",
    "pack_codes",
    "pool",
    "settled",
]
