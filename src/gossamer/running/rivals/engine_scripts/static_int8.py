# SPDX-License-Identifier: Apache-2.0
"""Static int8 of a graph by ONNX Runtime's own tool."""

from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process


class _Batches(CalibrationDataReader):
    def __init__(self, batches):
        self._left = list(batches)

    def get_next(self):
        return self._left.pop() if self._left else None


def with_shapes(path):
    """The path of the same graph with the shapes of its values, as networks want it."""
    to = path.replace(".onnx", "_shapes.onnx")
    quant_pre_process(path, to, skip_symbolic_shape=True)
    return to


def quantised(path, calibration, qdq, **options):
    """The path of the int8 graph; qdq: pairs of QuantizeLinear, else QLinear operators."""
    to = path.replace(".onnx", "_int8.onnx")
    quantize_static(
        path,
        to,
        _Batches(calibration),
        quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        **options,
    )
    return to
