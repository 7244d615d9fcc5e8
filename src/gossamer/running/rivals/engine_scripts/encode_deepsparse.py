# SPDX-License-Identifier: Apache-2.0
"""DeepSparse: fp32, or static int8 as QLinearMatMul with a scale per tensor.

It multiplies only this form in int8: pairs of QuantizeLinear and DequantizeLinear run slower than
fp32, and a dynamically quantised graph ends its process.
"""

import logging
import os
import tempfile
from pathlib import Path

os.environ["NM_DISABLE_ANALYTICS"] = "1"

from deepsparse import compile_model
from encoder_graph import save_encoder, weight_products
from encoders import serve
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

logging.disable(logging.WARNING)


def prepare(arrays, ids, precision, threads, calibration):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "encoder.onnx")
        save_encoder(arrays, ids.shape, path)
        if precision == "int8":
            path = _quantised(path, calibration)
        engine = compile_model(path, batch_size=len(ids), num_cores=threads)
    return lambda inputs: engine.run([inputs["ids"], inputs["mask"]])[0]


class _Batches(CalibrationDataReader):
    def __init__(self, batches):
        self._left = list(batches)

    def get_next(self):
        return self._left.pop() if self._left else None


def _quantised(path, calibration):
    to = path.replace(".onnx", "_int8.onnx")
    quantize_static(
        path,
        to,
        _Batches(calibration),
        quant_format=QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_quantize=weight_products(path),
    )
    return to


serve("deepsparse", prepare)
