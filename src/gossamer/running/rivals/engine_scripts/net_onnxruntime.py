# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: fp32, or static int8 as QDQ."""

import logging

import onnxruntime
from networks import serve
from static_int8 import quantised

logging.disable(logging.WARNING)


def prepare(path, calibration, precision, batch, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if precision == "int8":
        path = quantised(path, calibration, batch, qdq=True)
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


serve("onnxruntime", prepare)
