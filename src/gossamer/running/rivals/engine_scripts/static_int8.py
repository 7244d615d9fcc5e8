# SPDX-License-Identifier: Apache-2.0
"""Static int8 of a network by ONNX Runtime's own tool: weights per channel."""

from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process


class _Batches(CalibrationDataReader):
    def __init__(self, images, batch):
        parts = range(0, len(images) - batch + 1, batch)
        self._left = [{"x": images[i : i + batch]} for i in parts]

    def get_next(self):
        return self._left.pop() if self._left else None


def quantised(path, images, batch, qdq, activation_type=QuantType.QUInt8):
    """The path of the int8 graph; qdq: pairs of QuantizeLinear, else QLinear operators."""
    prepared, to = path.replace(".onnx", "_shapes.onnx"), path.replace(".onnx", "_int8.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        to,
        _Batches(images, batch),
        quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
        activation_type=activation_type,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return to
