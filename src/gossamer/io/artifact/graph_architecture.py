# SPDX-License-Identifier: Apache-2.0
"""Graphs of operators as part of a manifest, and back."""

from collections.abc import Callable

import torch
from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io.artifact.manifest import (
    GraphConstant,
    GraphInput,
    GraphNode,
    GraphOutput,
    GraphStep,
    TorchNode,
    ZooNode,
)
from gossamer.io.artifact.skeleton import MAX_NODES, SkeletonBuilder
from gossamer.io.safe_files.tensors import DTYPE_NAMES, dtype_name
from gossamer.nn.operator_graph import GraphModule, OperatorPlan, PlanInput, Step

DescribeLayer = Callable[[nn.Module, str], TorchNode | ZooNode | None]


def describe_graph(model: GraphModule, describe_layer: DescribeLayer) -> GraphNode | None:
    """The graph as data; None if one of its layers is in no table."""
    plan = model.plan
    paths = dict.fromkeys(step.layer for step in plan.steps if step.layer is not None)
    layers = []
    for path in paths:
        node = describe_layer(model.get_submodule(path), path)
        if not isinstance(node, TorchNode):
            return None
        layers.append(node)
    constants = []
    for name in plan.constants:
        tensor = model.constants.get_buffer(name)
        dtype = dtype_name(tensor.dtype)
        constants.append(GraphConstant(name=name, shape=tuple(tensor.shape), dtype=dtype))
    return GraphNode(
        inputs=tuple(GraphInput(**vars(entry)) for entry in plan.inputs),
        constants=tuple(constants),
        layers=tuple(layers),
        steps=tuple(GraphStep(**vars(step)) for step in plan.steps),
        outputs=tuple(GraphOutput(name=name, value=value) for name, value in plan.outputs),
    )


def build_graph(node: GraphNode, builder: SkeletonBuilder) -> GraphModule:
    """The described graph on the meta device; every step is checked against the table."""
    where = "architecture"
    if len(node.layers) > MAX_NODES:
        raise ArtifactError(f"{where}: describes more than {MAX_NODES} modules.")
    layers = {layer.key: builder.build(layer) for layer in node.layers}
    if len(layers) != len(node.layers):
        raise ArtifactError(f"{where}: two layers have one name.")
    constants = {}
    for entry in node.constants:
        if entry.dtype not in DTYPE_NAMES:
            raise ArtifactError(f"{where}: {entry.name!a} is of the unknown type {entry.dtype!a}.")
        dtype = DTYPE_NAMES[entry.dtype]
        constants[entry.name] = torch.empty(entry.shape, dtype=dtype, device="meta")
    plan = OperatorPlan(
        inputs=tuple(PlanInput(**vars(entry)) for entry in node.inputs),
        constants=tuple(entry.name for entry in node.constants),
        steps=tuple(_step(step) for step in node.steps),
        outputs=tuple((entry.name, entry.value) for entry in node.outputs),
    )
    try:
        return GraphModule(plan, layers, constants, where)
    except (InputError, KeyError) as error:
        raise ArtifactError(f"{error}") from error


def _step(step: GraphStep) -> Step:
    attributes = {name: value for name, value in step.attributes.items() if value is not None}
    return Step(**{**vars(step), "attributes": attributes})
