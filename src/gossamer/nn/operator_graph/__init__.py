# SPDX-License-Identifier: Apache-2.0
"""Models that are a graph of operators: data, run by a closed table of torch functions.

A `GraphModule` runs an `OperatorPlan`: numbered values, and a `Step` for every operator or layer.
What an operator is called, takes and computes stands in `OPERATORS`. ONNX files become such models
(`gossamer.io.onnx`), and artifacts store them; see README.md.
"""

from gossamer.nn.operator_graph.elementwise import DTYPES
from gossamer.nn.operator_graph.module import GraphModule, StoredScales
from gossamer.nn.operator_graph.plan import OperatorPlan, PlanInput, Step
from gossamer.nn.operator_graph.table import OPERATORS, Attribute, largest_result

__all__ = [
    "DTYPES",
    "OPERATORS",
    "Attribute",
    "GraphModule",
    "OperatorPlan",
    "PlanInput",
    "Step",
    "StoredScales",
    "largest_result",
]
