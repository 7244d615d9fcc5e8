# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: fp32, or dynamic int8 with weights per channel."""

import logging
import tempfile
from pathlib import Path

import onnxruntime
from encoder_graph import save_encoder
from encoders import serve
from onnxruntime.quantization import QuantType, quantize_dynamic

logging.disable(logging.WARNING)


def prepare(arrays, ids, precision, threads, calibration):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path, int8 = str(Path(folder) / "encoder.onnx"), str(Path(folder) / "int8.onnx")
        save_encoder(arrays, ids.shape, path)
        if precision == "int8":
            # Without VNNI, products of full-range int8 saturate.
            narrow = "vnni" not in Path("/proc/cpuinfo").read_text()
            quantize_dynamic(
                path, int8, per_channel=True, reduce_range=narrow, weight_type=QuantType.QInt8
            )
            path = int8
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


serve("onnxruntime", prepare)
