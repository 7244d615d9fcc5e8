# SPDX-License-Identifier: Apache-2.0
"""Operators on tensors that a model computes, by name, for formats of their inputs and outputs.

`operator_of` says which operator a function of torch is, `add_operator` names one that is not in
the table. `run_operator` computes one for a `Plan`: by a kernel for its formats, or densely, which
is counted. `TensorFormat` is how a `CompressedTensor` holds its entries.

Rooms behind this door: `table`, the names; `kernels`, forward and backward kernels and how they are
added; `compressed`, the formats; `running`, the way of a call.
"""

from gossamer.ops.operators import by_slices, entrywise, products  # noqa: F401  (add their kernels)
from gossamer.ops.operators.compressed import CompressedTensor, TensorFormat
from gossamer.ops.operators.running import Plan, convert, run_operator
from gossamer.ops.operators.table import add_operator, operator_of, works_in_place

__all__ = [
    "CompressedTensor",
    "Plan",
    "TensorFormat",
    "add_operator",
    "convert",
    "operator_of",
    "run_operator",
    "works_in_place",
]
