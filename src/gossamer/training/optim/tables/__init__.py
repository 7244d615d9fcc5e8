# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tables (`gossamer.nn.Embedding`, `EmbeddingBag`): steps move touched rows only.

`TableSGD`, `TableAdagrad` (row-wise) and `TableAdam` take the Parameters of tables and stand beside
the optimizer of the dense part. With `fused=True` rows move inside the backward.
"""

from gossamer.training.optim.tables.base import TableOptimizer
from gossamer.training.optim.tables.rules import TableAdagrad, TableAdam, TableSGD

__all__ = ["TableAdagrad", "TableAdam", "TableOptimizer", "TableSGD"]
