# SPDX-License-Identifier: Apache-2.0
"""Writes ONNX files node by node, as exporters of several opsets do."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

KINDS = {
    "float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8, "int32": TensorProto.INT32, "bool": TensorProto.BOOL,
    "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
}  # fmt: skip


class Maker:
    """Collects nodes; `op` gives back the name of what a node makes."""

    def __init__(self, opset: int = 14) -> None:
        self.opset, self.nodes, self.initialisers = opset, [], []
        self.inputs, self.outputs, self.sparse = [], [], []

    def input(self, name: str, dims: list[Any] | None, kind: str = "float32") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, KINDS[kind], dims))
        return name

    def const(self, value: Any, name: str = "", kind: str | None = None) -> str:
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        array = array.astype(kind) if kind else array
        name = name or f"onnx::Const_{len(self.initialisers)}"
        self.initialisers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        if array.ndim == 0:  # ascontiguousarray makes one dimension of none
            self.initialisers[-1] = numpy_helper.from_array(array, name)
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **attributes) -> Any:
        made = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def result(self, value: str, name: str, kind: str = "float32") -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, KINDS[kind], None))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "g", self.inputs, self.outputs, self.initialisers,
            sparse_initializer=self.sparse,
        )  # fmt: skip
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.model().SerializeToString())
        return path


def run_reference(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime computes where it is installed, else the reference of the package onnx."""
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        model = onnx.load(path)
        if any(node.op_type == "DequantizeLinear" for node in model.graph.node):
            # The reference has it from opset 19 on; with a scale per tensor or axis it is the same.
            model.opset_import[0].version = max(model.opset_import[0].version, 19)
        return ReferenceEvaluator(model).run(None, inputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    return session.run(None, inputs)


def bert_file(model: torch.nn.Module, path: Path, opset: int = 11, *, sparse: bool = False) -> Path:
    """A BertModel with layer norms and GELUs spelt out, as exporters did before opset 17."""
    make, config, state = Maker(opset), model.config, model.state_dict()
    ids = make.input("input_ids", ["batch", "tokens"], "int64")
    mask = make.input("attention_mask", ["batch", "tokens"], "int64")
    weights = _Weights(make, state)
    words = make.op("Gather", weights.plain("embeddings.word_embeddings.weight"), ids)
    kinds = weights.plain("embeddings.token_type_embeddings.weight")
    zeros = make.op("Sub", ids, ids)
    x = make.op("Add", words, make.op("Gather", kinds, zeros))
    length = make.op("Gather", make.op("Shape", ids), make.const(1, kind="int64"), axis=0)
    length = _unsqueeze(make, length, [0])
    places = make.const(np.arange(config.max_position_embeddings)[None], kind="int64")
    zero, one = make.const([0], kind="int64"), make.const([1], kind="int64")
    places = make.op("Slice", places, zero, length, one)
    positions = weights.plain("embeddings.position_embeddings.weight")
    x = weights.norm(
        make.op("Add", x, make.op("Gather", positions, places)), "embeddings.LayerNorm"
    )
    wide = make.op("Cast", _unsqueeze(make, mask, [1, 2]), to=TensorProto.FLOAT)
    bias = make.op("Mul", make.op("Sub", make.const(1.0, kind="float32"), wide),
                   make.const(-10000.0, kind="float32"))  # fmt: skip
    for number in range(config.num_hidden_layers):
        x = _bert_layer(make, weights, x, bias, config, f"encoder.layer.{number}")
    make.result(x, "last_hidden_state")
    return make.write(path)


class _Weights:
    def __init__(self, make: Maker, state: dict[str, torch.Tensor]) -> None:
        self.make, self.state = make, state

    def plain(self, name: str) -> str:
        return self.make.const(self.state[name], name)

    def linear(self, x: str, name: str) -> str:
        # Exporters turn the weight, which loses its name; the bias keeps it.
        weight = self.make.const(self.state[f"{name}.weight"].T)
        product = self.make.op("MatMul", x, weight)
        return self.make.op("Add", self.plain(f"{name}.bias"), product)

    def norm(self, x: str, name: str, epsilon: float = 1e-12) -> str:
        make = self.make
        centred = make.op("Sub", x, _mean(make, x))
        square = make.op("Pow", centred, make.const(2.0, kind="float32"))
        spread = make.op("Add", _mean(make, square), make.const(epsilon, kind="float32"))
        normed = make.op("Div", centred, make.op("Sqrt", spread))
        scaled = make.op("Mul", normed, self.plain(f"{name}.weight"))
        return make.op("Add", scaled, self.plain(f"{name}.bias"))


def gelu(make: Maker, x: str) -> str:
    half = make.op("Div", x, make.const(2**0.5, kind="float32"))
    one = make.op("Add", make.op("Erf", half), make.const(1.0, kind="float32"))
    return make.op("Mul", make.op("Mul", x, one), make.const(0.5, kind="float32"))


def _mean(make: Maker, x: str) -> str:
    if make.opset >= 18:
        return make.op("ReduceMean", x, make.const([-1], kind="int64"))
    return make.op("ReduceMean", x, axes=[-1])


def _unsqueeze(make: Maker, x: str, axes: list[int]) -> str:
    if make.opset >= 13:
        return make.op("Unsqueeze", x, make.const(axes, kind="int64"))
    return make.op("Unsqueeze", x, axes=axes)


def _bert_layer(make: Maker, weights: _Weights, x: str, bias: str, config: Any, name: str) -> str:
    heads = config.num_attention_heads
    width = config.hidden_size // heads
    shape = make.op("Shape", x)
    sizes = [
        _unsqueeze(make, make.op("Gather", shape, make.const(i, kind="int64"), axis=0), [0])
        for i in (0, 1)
    ]
    own = make.const([heads, width], kind="int64")
    split = make.op("Concat", *sizes, own, axis=0)
    parts = []
    for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        y = weights.linear(x, f"{name}.attention.self.{part}")
        parts.append(make.op("Transpose", make.op("Reshape", y, split), perm=perm))
    scores = make.op("MatMul", parts[0], parts[1])
    scores = make.op("Div", scores, make.const(width**0.5, kind="float32"))
    chances = make.op("Softmax", make.op("Add", scores, bias), axis=3)
    y = make.op("Transpose", make.op("MatMul", chances, parts[2]), perm=[0, 2, 1, 3])
    joined = make.op("Concat", *sizes, make.const([heads * width], kind="int64"), axis=0)
    y = weights.linear(make.op("Reshape", y, joined), f"{name}.attention.output.dense")
    x = weights.norm(make.op("Add", y, x), f"{name}.attention.output.LayerNorm")
    y = gelu(make, weights.linear(x, f"{name}.intermediate.dense"))
    y = weights.linear(y, f"{name}.output.dense")
    return weights.norm(make.op("Add", y, x), f"{name}.output.LayerNorm")
