# SPDX-License-Identifier: Apache-2.0
"""How large the result of an operator can be, known before it is computed."""

import math

from torch import Tensor

from gossamer.nn.operator_graph.elementwise import BROADCASTING, UNARY
from gossamer.nn.operator_graph.shaping import broadcast

# Operators whose results are no larger than their largest input.
_NEVER_LARGER = {
    *UNARY, "DequantizeLinear", "QuantizeLinear", "Flatten", "Reshape", "Shape", "Size", "Slice",
    "Split", "Squeeze", "Transpose", "Trilu", "Unsqueeze", "CumSum", "ArgMax", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Softmax",
}  # fmt: skip


def largest_result(operator: str, given: list[Tensor], axis: int) -> int | None:
    """A bound of the elements of a result, None where nobody can tell.

    Args:
        operator: a name of the table.
        given: its inputs.
        axis: its attribute, where it has one.
    """
    total = sum(tensor.numel() for tensor in given)
    if operator in _NEVER_LARGER or operator == "Concat":
        return total
    if operator in BROADCASTING:
        return math.prod(broadcast(*(tensor.shape for tensor in given)))
    if operator == "ConstantOfShape":
        return abs(math.prod(int(size) for size in given[0].tolist()))
    if operator == "Expand":
        return abs(math.prod(broadcast(given[0].shape, given[1].tolist())))
    if operator == "Gather":
        return given[0].numel() // max(1, given[0].shape[axis]) * given[1].numel()
    if operator == "Range":
        first, last, step = (float(tensor) for tensor in given)
        return math.ceil(abs((last - first) / step)) if step else 0
    # Products of matrices and the like: small ones only.
    return total * total if total <= 4096 else None
