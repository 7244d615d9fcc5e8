# SPDX-License-Identifier: Apache-2.0
"""Custom ops: what tracers, transforms, graphs and torch.onnx.export get to see of gossamer.

`define_op` makes a function an op and `call_op` calls it; `Handles` are the numbers that stand for
packed weights in it. Plain calls of native code go past all this (`ops/addresses.py`).
"""

from gossamer.ops.calls.onnx_form import expand_for_onnx, is_onnx_export, is_traced, refuse_onnx
from gossamer.ops.calls.op_call import NO_GRADIENTS, Handles, call_op, define_op

__all__ = [
    "NO_GRADIENTS",
    "Handles",
    "call_op",
    "define_op",
    "expand_for_onnx",
    "is_onnx_export",
    "is_traced",
    "refuse_onnx",
]
