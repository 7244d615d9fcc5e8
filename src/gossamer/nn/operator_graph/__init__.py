# SPDX-License-Identifier: Apache-2.0
"""Models that are a graph of operators: data, run by a closed table of torch functions.

A `GraphModule` runs an `OperatorPlan`: numbered values, each a `PlanInput` or the result of a
`Step`, which is an operator or a layer; `StoredScales` are those of quantised layers. What an
operator computes stands in `operators`. ONNX files become such models (`gossamer.io.onnx`), and
artifacts store them; see README.md.
"""

from gossamer.nn.operator_graph.module import (
    GraphModule,
    OperatorPlan,
    PlanInput,
    Step,
    StoredScales,
)

__all__ = ["GraphModule", "OperatorPlan", "PlanInput", "Step", "StoredScales"]
