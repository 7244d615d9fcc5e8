# SPDX-License-Identifier: Apache-2.0
"""One MatMul as an ONNX file."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR = 13, 8


def save_matmul(weight, tokens, path):
    """Save y [T, R] = x [T, K] times the transpose of weight [R, K]."""
    rows, columns = weight.shape
    values = numpy_helper.from_array(np.ascontiguousarray(weight.T), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [tokens, columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [tokens, rows])],
        [values],
    )
    opset = [helper.make_opsetid("", _OPSET)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=_IR), path)
