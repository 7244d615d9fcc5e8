# SPDX-License-Identifier: Apache-2.0
"""Models in ONNX files."""

from pathlib import Path

import numpy as np
import torch
from target import target


def onnx_seeds(folder: Path) -> None:
    import onnx
    from onnx_tools import Maker, bert_file
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    for name in ("linear", "conv", "bert", "quantised"):
        (folder / name).mkdir()
    make = Maker(14)
    x = make.op("MatMul", make.input("x", ["n", 4]), make.const(np.ones((4, 3)), "w", "float32"))
    make.result(make.op("Softmax", make.op("Relu", x), axis=-1), "y")
    make.write(folder / "linear" / "m.onnx")
    make = Maker(13)
    x = make.input("x", ["n", 1, 6, 6])
    weight = make.const(np.ones((2, 1, 3, 3)), "c", "float32")
    x = make.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    x = make.op("MaxPool", x, kernel_shape=[2, 2])
    x = make.op("Reshape", x, make.const(np.array([0, -1]), "shape", "int64"))
    make.result(make.op("Clip", x, make.const(np.array(0.0), "low", "float32")), "y")
    make.write(folder / "conv" / "m.onnx")
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    bert_file(BertModel(config), folder / "bert" / "m.onnx")
    make = Maker(13)
    x = make.input("x", ["n", 4])
    codes = make.const(np.ones((4, 3)), "q", "int8")
    scale, zero = make.const(np.array(0.1), "s", "float32"), make.const(np.array(0), "z", "int8")
    rounded = make.op("QuantizeLinear", x, scale, zero)
    x = make.op("DequantizeLinear", rounded, scale, zero)
    make.result(make.op("MatMul", x, make.op("DequantizeLinear", codes, scale, zero)), "y")
    make.write(folder / "quantised" / "m.onnx")
    (folder / "integer").mkdir()
    make = Maker(11)
    rounded, scale, zero = make.op("DynamicQuantizeLinear", make.input("x", ["n", 4]), outputs=3)
    codes = make.const(np.ones((4, 3)), "q", "int8")
    product = make.op("MatMulInteger", rounded, codes, zero, make.const(np.array(0), "z", "int8"))
    real = make.op("Cast", product, to=1)
    scales = make.op("Mul", scale, make.const(np.array(0.1), "s", "float32"))
    make.result(make.op("Mul", real, scales), "y")
    make.write(folder / "integer" / "m.onnx")
    _more_onnx_seeds(folder)
    (folder / "outside").mkdir()
    onnx.save(
        onnx.load(folder / "linear" / "m.onnx"),
        folder / "outside" / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )


def _more_onnx_seeds(folder: Path) -> None:
    """Operators that are rewritten, and tensors that are stored in other ways."""
    from onnx import TensorProto, helper
    from onnx_tools import Maker

    def write(make: Maker, value: str, name: str, kind: str = "float32") -> None:
        make.result(value, "y", kind)
        (folder / name).mkdir()
        make.write(folder / name / "m.onnx")

    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape)

    make = Maker(11)
    x = make.op(
        "Conv", make.input("x", ["n", 1, 4, 4]), make.const(ones(2, 1, 1, 1), "c", "float32")
    )
    statistics = [make.const(ones(2), name, "float32") for name in ("g", "b", "m", "v")]
    x = make.op("BatchNormalization", x, *statistics, epsilon=1e-3, momentum=0.9)
    x = make.op("LogSoftmax", make.op("Flatten", make.op("GlobalAveragePool", x)))
    weights = make.const(ones(3, 2), "w", "float32"), make.const(ones(3), "d", "float32")
    write(make, make.op("Gemm", x, *weights, transB=1, alpha=0.5, beta=2.0), "norms")
    make = Maker(17)
    gain, shift = (make.const(ones(4), name, "float32") for name in ("g", "b"))
    x = make.op("LayerNormalization", make.input("x", ["n", 4]), gain, shift, epsilon=1e-6)
    low, high = make.op("Split", x, make.const(np.array([2, 2]), "cut", "int64"), outputs=2, axis=1)
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])
    plain = make.op("Constant", value=tensor), make.op("Constant", value_float=2.0)
    write(
        make,
        make.op("Concat", make.op("Mul", low, plain[0]), make.op("Add", high, plain[1]), axis=1),
        "constants",
    )
    make = Maker(13)
    codes, unit = make.const(ones(4, 3), "q", "int8"), make.const(np.array(0.1), "s", "float32")
    zero = make.const(np.array(0), "z", "int8")
    x = make.op("QuantizeLinear", make.input("x", ["n", 4]), unit, zero)
    x = make.op("QLinearMatMul", x, unit, zero, codes, unit, zero, unit, zero)
    write(make, make.op("DequantizeLinear", x, unit, zero), "product")
    make = Maker(13)
    unit, zero = make.const(np.array(0.1), "s", "float32"), make.const(np.array(0), "z", "int8")
    x = make.op("QuantizeLinear", make.input("x", ["n", 1, 4, 4]), unit, zero)
    kernel, bias = make.const(ones(2, 1, 3, 3), "q", "int8"), make.const(ones(2), "b", "int32")
    x = make.op("QLinearConv", x, unit, zero, kernel, unit, zero, unit, zero, bias)
    write(make, make.op("DequantizeLinear", x, unit, zero), "convolution")
    make = Maker(13)
    make.result(make.op("MatMul", make.input("x", ["n", 4]), "w"), "y")
    model = make.model()
    values = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    places = helper.make_tensor("p", TensorProto.INT64, [3], [0, 5, 11])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 3]))
    (folder / "sparse").mkdir()
    (folder / "sparse" / "m.onnx").write_bytes(model.SerializeToString())


@target("onnx", onnx_seeds, "io/onnx/[!e]*.py")
def read_onnx(folder: Path) -> object:
    from gossamer.io import load_onnx

    return load_onnx(folder / "m.onnx")
