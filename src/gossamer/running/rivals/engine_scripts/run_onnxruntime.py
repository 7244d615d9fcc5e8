# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: fp32, or int8 with weights per channel: dynamic for encoders, else static QDQ."""

import logging
from pathlib import Path

import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from serve import serve
from static_int8 import quantised, with_shapes

logging.disable(logging.WARNING)


def prepare(path, kind, precision, threads, calibration):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if precision == "int8" and kind == "encoder":
        path = _dynamic(path)
    elif precision == "int8":
        path = quantised(with_shapes(path), calibration, qdq=True, per_channel=True)
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def _dynamic(path):
    to = path.replace(".onnx", "_int8.onnx")
    # Without VNNI, products of full-range int8 saturate.
    narrow = "vnni" not in Path("/proc/cpuinfo").read_text()
    quantize_dynamic(path, to, per_channel=True, reduce_range=narrow, weight_type=QuantType.QInt8)
    return to


serve("onnxruntime", prepare)
