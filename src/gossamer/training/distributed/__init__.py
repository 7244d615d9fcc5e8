# SPDX-License-Identifier: Apache-2.0
"""Training on many processes: a mesh of ranks, and the parts of a model on it.

What stands here needs no torch: the sizes of a mesh, what one rank does with a batch, and how costs
are cut into parts. `processes` starts and ends the ranks together, `placement` lays a model out on
them and is what a `Loop` uses, `pipeline` runs layers one after the other, `tasc` sends only the
blocks of a gradient that matter.
"""

from gossamer.training.distributed.mesh_sizes import AXES, MeshSizes, picture, split_batch
from gossamer.training.distributed.partition import partition
from gossamer.training.distributed.table_traffic import TableWire, table_traffic
from gossamer.training.distributed.told_once import told_once_per_host

__all__ = [
    "AXES",
    "MeshSizes",
    "TableWire",
    "partition",
    "picture",
    "split_batch",
    "table_traffic",
    "told_once_per_host",
]
