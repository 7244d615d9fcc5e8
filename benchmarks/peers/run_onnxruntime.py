# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime, dynamic int8: one dense MatMul, weights per channel, activations per tensor."""

import logging
import tempfile
from pathlib import Path

import onnxruntime
from onnx_graph import save_matmul
from onnxruntime.quantization import QuantType, quantize_dynamic
from serve import forward_only, serve

logging.disable(logging.WARNING)


def prepare(weight, x, task, threads):
    forward_only(task)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        dense, int8 = str(Path(folder) / "dense.onnx"), str(Path(folder) / "int8.onnx")
        save_matmul(weight, len(x), dense)
        # Without VNNI, products of full-range int8 saturate; 7 bits cost no time.
        quantize_dynamic(
            dense, int8, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )
        session = onnxruntime.InferenceSession(int8, options, ["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0]


serve(prepare)
