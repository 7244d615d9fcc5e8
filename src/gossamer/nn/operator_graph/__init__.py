# SPDX-License-Identifier: Apache-2.0
"""Models that are a graph of operators: data, run by a closed table of torch functions."""

from gossamer.nn.operator_graph.module import GraphModule, Outputs, StoredScales
from gossamer.nn.operator_graph.plan import Plan, PlanInput, Step
from gossamer.nn.operator_graph.table import OPERATORS, Attribute, Operator

__all__ = [
    "OPERATORS",
    "Attribute",
    "GraphModule",
    "Operator",
    "Outputs",
    "Plan",
    "PlanInput",
    "Step",
    "StoredScales",
]
