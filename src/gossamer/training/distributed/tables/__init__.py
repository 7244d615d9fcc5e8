# SPDX-License-Identifier: Apache-2.0
"""Tables on many processes: gradients of touched rows that travel as integers.

`TableExchange` averages the sparse gradients of `sparse_tables(model)` over ranks by one packet of
rows of all tables; `TableSettings` says how. `Int8Mean` does it for the dense layers beside them.
Scales of rows in few bits are kept equal on all ranks by `scales`.

`shard_tables` gives every rank some rows of each table instead; `look_up` asks for pooled rows.
"""

from gossamer.training.distributed.tables.dense_layers import Int8Mean
from gossamer.training.distributed.tables.exchange import StepRecord, TableExchange, TableSettings
from gossamer.training.distributed.tables.rows import sparse_tables
from gossamer.training.distributed.tables.shard_plan import Sharding
from gossamer.training.distributed.tables.sharded import look_up
from gossamer.training.distributed.tables.sharding import shard_tables

__all__ = [
    "Int8Mean",
    "Sharding",
    "StepRecord",
    "TableExchange",
    "TableSettings",
    "look_up",
    "shard_tables",
    "sparse_tables",
]
