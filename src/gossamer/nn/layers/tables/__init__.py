# SPDX-License-Identifier: Apache-2.0
"""Tables: `nn.Embedding` and `nn.EmbeddingBag` in the forms "trained" and "packed".

`Embedding` and `EmbeddingBag` are trained; `packed_table` makes the packed form of one,
`fold_rows` lets rows that were rarely seen share a row. `TableState` is a table as plain arrays.
"""

from gossamer.nn.layers.tables.base import TableLayer, table_of
from gossamer.nn.layers.tables.folding import fold_rows
from gossamer.nn.layers.tables.packed import packed_table
from gossamer.nn.layers.tables.stored import TableState
from gossamer.nn.layers.tables.trained import Embedding, EmbeddingBag, Quantising

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "Quantising",
    "TableLayer",
    "TableState",
    "fold_rows",
    "packed_table",
    "table_of",
]
