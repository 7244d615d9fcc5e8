# SPDX-License-Identifier: Apache-2.0
"""Reads an ONNX file into a checked graph: known operators, every value made once, no code.

Differences between opsets end here, and operators that stand for a few others become these: what
is returned uses the operators of `nn/operator_graph/operators/` only.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gossamer.errors import ArtifactError, GossamerError, InputError
from gossamer.io.onnx.graph import Node, OnnxGraph
from gossamer.io.onnx.tensors import TensorReader, dtype_of
from gossamer.named_files import read_named
from gossamer.nn.operator_graph import PlanInput
from gossamer.nn.operator_graph.operators import OPERATORS, Attribute

# Outputs that are computed; None stands for all of them, everything else has one.
UNIQUE_OUTPUTS = {"Split": None, "DynamicQuantizeLinear": 3}
# Attributes that may be there with the value that means "as ever".
_NEUTRAL = {"block_size": 0, "output_dtype": 0, "precision": 0}
_QUANTISING = ("QuantizeLinear", "DequantizeLinear")
# Before opset 13 everything from the axis on was one row.
_FLAT = {"Softmax": "FlatSoftmax", "LogSoftmax": "FlatLogSoftmax"}

# Appends a step, an operator with inputs and attributes, and gives the value that it makes.
Add = Callable[..., str]


def normalise(node: Node, opset: int) -> None:
    """Rewrite a node of any opset as the table means it."""
    for name, value in _NEUTRAL.items():
        if node.operator in _QUANTISING and node.attributes.get(name) == value:
            del node.attributes[name]
    if node.operator == "Split":
        node.attributes["num_outputs"] = len(node.outputs)
    if node.operator == "BatchNormalization":
        # Running statistics are an output in training only.
        node.attributes.pop("momentum", None)
    while node.inputs and not node.inputs[-1]:
        node.inputs.pop()
    if node.operator in _FLAT and opset < 13:
        node.attributes.setdefault("axis", 1)
        node.operator = _FLAT[node.operator]


def lower(node: Node, graph: OnnxGraph) -> list[Node]:
    """The nodes that compute what `node` does, with operators of the table."""
    if node.operator not in LOWERED:
        return [node]
    steps: list[Node] = []

    def add(operator: str, *inputs: str, **attributes: Attribute) -> str:
        """The value that the next step makes."""
        made = graph.value()
        steps.append(Node(operator, list(inputs), [made], attributes, node.name))
        return made

    LOWERED[node.operator](node, add)
    # What the last step makes is what the node makes.
    steps[-1].outputs = node.outputs
    return steps


def _lower_matmul(node: Node, add: Add) -> None:
    """Q(DQ(a) DQ(b)): sums are those of floats, so a tie may round to the neighbour."""
    if len(node.inputs) != 8:
        raise InputError(f"{len(node.inputs)} inputs, expected 8.")
    left = add("DequantizeLinear", *node.inputs[:3], axis=-2)
    right = add("DequantizeLinear", *node.inputs[3:6], axis=-1)
    add("QuantizeLinear", add("MatMul", left, right), *node.inputs[6:], axis=-1)


def _lower_conv(node: Node, add: Add) -> None:
    if len(node.inputs) not in (8, 9):
        raise InputError(f"{len(node.inputs)} inputs, expected 8 or 9.")
    inputs = [
        add("DequantizeLinear", *node.inputs[:3], axis=1),
        add("DequantizeLinear", *node.inputs[3:6], axis=0),
    ]
    if node.input(8):
        # The bias is int32 in units of the scale of x times that of the weight.
        unit = add("Mul", node.inputs[1], node.inputs[4])
        inputs.append(add("DequantizeLinear", node.inputs[8], unit, axis=0))
    add("QuantizeLinear", add("Conv", *inputs, **node.attributes), *node.inputs[6:8], axis=1)


def _lower_log_softmax(node: Node, add: Add) -> None:
    add("Log", add("FlatSoftmax", *node.inputs, **node.attributes))


# Operators that are written as others when a file is read.
LOWERED = {
    "FlatLogSoftmax": _lower_log_softmax,
    "QLinearConv": _lower_conv,
    "QLinearMatMul": _lower_matmul,
}


ONNX_SUFFIX = ".onnx"
OPSETS = range(11, 24)
MAX_FILE_BYTES = 2**31
MAX_NODES = 100_000
MAX_NAME = 256
_SCOPES = "pkg.torch.onnx.name_scopes"
_INTERNAL = {
    "AutoPad", "DynamicQuantizeDequantize", "FlatLogSoftmax", "FlatSoftmax", "QuantizeDequantize",
    "ScaledAttention", "ZeroPad",
}  # fmt: skip
SUPPORTED = tuple(sorted({*OPERATORS, *LOWERED, "Constant"} - _INTERNAL))


def is_onnx(path: os.PathLike[str] | str) -> bool:
    """Whether a path has the name of an ONNX file."""
    return Path(path).suffix.lower() == ONNX_SUFFIX


def read_onnx(path: Path, max_bytes: int | None = None) -> OnnxGraph:
    """The graph in a file, or ArtifactError."""
    model, where = _parse(path), str(path)
    versions = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    opset = versions.get("ai.onnx", 0)
    if opset not in OPSETS:
        raise ArtifactError(
            f"{where}: opset {opset} cannot be read; expected {OPSETS[0]} to {OPSETS[-1]}. Export"
            " the model again with one of them."
        )
    if len(model.graph.node) > MAX_NODES:
        raise ArtifactError(f"{where}: {len(model.graph.node)} nodes, more than {MAX_NODES}.")
    tensors = TensorReader(path, max_bytes, stored=path.stat().st_size)
    constants = _initialisers(model.graph, tensors)
    inputs = tuple(
        _input(entry, where) for entry in model.graph.input if entry.name not in constants
    )
    outputs = [(entry.name, entry.name) for entry in model.graph.output]
    graph = OnnxGraph(where, inputs, outputs, constants)
    known = {entry.name for entry in inputs} | set(constants)
    if len(known) != len(inputs) + len(constants):
        raise ArtifactError(f"{where}: two inputs have one name.")
    for number, proto in enumerate(model.graph.node):
        node = _node(proto, number, where)
        for value in filter(None, node.outputs):
            if value in known:
                raise ArtifactError(f"{where}: {node} makes {value[:200]!a}, which is there.")
            known.add(value)
        _place(graph, node, proto, opset, tensors)
    _check_values(graph, known)
    graph.shared = {name for name in constants if len(graph.users.get(name, ())) > 1}
    return graph


def _parse(path: Path) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise InputError(
            "the package onnx is not installed, but this file needs it: pip install"
            " 'gossamer[onnx]'."
        ) from error
    raw, model = read_named(path, MAX_FILE_BYTES), onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    except (DecodeError, RecursionError, ValueError) as error:
        raise ArtifactError(f"{path}: is no ONNX file or was truncated ({error}).") from error
    _check_texts(model.graph, path)
    if not model.HasField("graph") or not model.graph.output:
        raise ArtifactError(f"{path}: holds no graph with outputs; it is no ONNX model.")
    return model


def _check_texts(graph: Any, path: Path) -> None:
    """Names that are not UTF-8 come as bytes."""
    texts = [
        entry.name for part in (graph.initializer, graph.input, graph.output) for entry in part
    ]
    texts += [entry.values.name for entry in graph.sparse_initializer]
    for node in graph.node:
        texts += [node.op_type, node.domain, node.name, *node.input, *node.output]
        texts += [entry.name for entry in node.attribute]
        texts += [text for entry in node.metadata_props for text in (entry.key, entry.value)]
    for entry in graph.initializer:
        texts += [text for pair in entry.external_data for text in (pair.key, pair.value)]
    for text in texts:
        if not isinstance(text, str):
            raise ArtifactError(f"{path}: the name {ascii(text)[:80]} is not UTF-8.")


def _initialisers(graph: Any, tensors: TensorReader) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    named = [(proto.name, tensors.dense, proto) for proto in graph.initializer]
    named += [(proto.values.name, tensors.sparse, proto) for proto in graph.sparse_initializer]
    for name, read, proto in named:
        if name in found or not 1 <= len(name) <= MAX_NAME:
            raise ArtifactError(f"{tensors.path}: the initialiser {name[:80]!a} appears twice.")
        found[name] = read(proto, name)
    return found


def _input(entry: Any, where: str) -> PlanInput:
    place = f"{where}: input {entry.name[:200]!a}"
    if not entry.type.HasField("tensor_type") or not 1 <= len(entry.name) <= MAX_NAME:
        raise ArtifactError(f"{place}: is no tensor.")
    kind = entry.type.tensor_type
    dtype = str(dtype_of(kind.elem_type, place)).removeprefix("torch.")
    dims = None
    if kind.HasField("shape"):
        # 0 where there is no dim_value: any size.
        dims = tuple(max(size.dim_value, 0) or None for size in kind.shape.dim)
    return PlanInput(entry.name, dtype, dims)


def _node(proto: Any, number: int, where: str) -> Node:
    # The module a node was exported from, as torch notes it: /encoder/layer.0/query/linear.
    notes = {entry.key: entry.value for entry in proto.metadata_props}
    scopes = re.findall(r"'([^']*)'", notes.get(_SCOPES, "")[:4096])
    name = proto.name or f"{proto.op_type}_{number}"
    if len(scopes) > 1 and scopes[-2]:
        name = f"/{scopes[-2]}/{scopes[-1]}"
    node = Node(proto.op_type, list(proto.input), list(proto.output), name=name)
    domain = proto.domain or "ai.onnx"
    if domain != "ai.onnx" or node.operator not in SUPPORTED:
        kind = node.operator if domain == "ai.onnx" else f"{domain[:80]}.{node.operator}"
        raise ArtifactError(
            f"{where}: node {node.name[:200]!a} is of the operator {kind[:200]!a}, which is not"
            f" supported. Supported: {', '.join(SUPPORTED)}."
        )
    if not any(node.outputs) or any(len(name) > MAX_NAME for name in node.inputs + node.outputs):
        raise ArtifactError(f"{where}: {node}: has no outputs, or a name that is too long.")
    return node


def _place(graph: OnnxGraph, node: Node, proto: Any, opset: int, tensors: TensorReader) -> None:
    where = f"{graph.where}: {node}"
    attributes = _attributes(proto, where, tensors)
    if node.operator == "Constant":
        graph.constants[node.outputs[0]] = _constant(attributes, where)
        return
    constants = {}
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor):
            constants[name] = value
        else:
            node.attributes[name] = value
    if constants:
        if node.operator != "ConstantOfShape" or list(constants) != ["value"]:
            raise ArtifactError(f"{where}: the attribute {min(constants)!a} is not computed.")
        node.inputs.append(graph.constant(constants["value"]))
    normalise(node, opset)
    node.outputs = node.outputs[: UNIQUE_OUTPUTS.get(node.operator, 1)]
    try:
        new = lower(node, graph)
    except GossamerError as error:
        raise ArtifactError(f"{where}: {error}") from error
    for part in new:
        fault = OPERATORS[part.operator].fault(len(part.inputs), part.attributes)
        if fault is not None:
            raise ArtifactError(f"{where}: {fault}.")
        if not all(part.inputs[: OPERATORS[part.operator].min_inputs]):
            raise ArtifactError(f"{where}: an input that it needs is absent.")
    graph.add(*new)


# How an attribute is read, by its type.
_READ: dict[str, Callable[[Any, TensorReader], Attribute | torch.Tensor]] = {
    "INT": lambda entry, _: int(entry.i),
    # fp32 in the file: the shortest decimal that is the same number is what was meant.
    "FLOAT": lambda entry, _: float(f"{entry.f:.7g}"),
    "STRING": lambda entry, _: entry.s.decode("utf-8", "backslashreplace"),
    "INTS": lambda entry, _: tuple(int(i) for i in entry.ints),
    "FLOATS": lambda entry, _: torch.tensor(list(entry.floats), dtype=torch.float32),
    "TENSOR": lambda entry, tensors: tensors.dense(entry.t, entry.name),
    "SPARSE_TENSOR": lambda entry, tensors: tensors.sparse(entry.sparse_tensor, entry.name),
}


def _attributes(
    proto: Any, where: str, tensors: TensorReader
) -> dict[str, Attribute | torch.Tensor]:
    found: dict[str, Attribute | torch.Tensor] = {}
    for entry in proto.attribute:
        if entry.name in found:
            raise ArtifactError(f"{where}: the attribute {entry.name[:80]!a} appears twice.")
        kind = entry.AttributeType.Name(entry.type)
        if kind not in _READ:
            raise ArtifactError(f"{where}: an attribute of type {kind} cannot be read.")
        found[entry.name] = _READ[kind](entry, tensors)
    return found


def _constant(attributes: dict[str, Attribute | torch.Tensor], where: str) -> torch.Tensor:
    if len(attributes) != 1:
        raise ArtifactError(f"{where}: expected one attribute with the value.")
    [(name, value)] = attributes.items()
    kinds = {"value_int": torch.int64, "value_ints": torch.int64, "value_float": torch.float32}
    if isinstance(value, torch.Tensor):
        if name in ("value", "sparse_value", "value_floats"):
            return value
    elif name in kinds:
        return torch.tensor(value, dtype=kinds[name])
    raise ArtifactError(f"{where}: the attribute {name[:80]!a} cannot be read.")


def _check_values(graph: OnnxGraph, known: set[str]) -> None:
    # Trimmed outputs (a mask of Dropout, indices of MaxPool) are known to the file but not made.
    made = {entry.name for entry in graph.inputs} | {*graph.constants, *graph.producer}
    nodes = dict.fromkeys(graph.producer.values())
    wanted = [(str(node), value) for node in nodes for value in node.inputs if value]
    wanted += [("the output list", value) for _, value in graph.outputs]
    for user, value in wanted:
        if value not in made:
            what = "is an output that is not computed" if value in known else "nothing makes"
            raise ArtifactError(f"{graph.where}: {user} uses {value[:200]!a}, which {what}.")
    graph.nodes()
