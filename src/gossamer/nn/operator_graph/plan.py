# SPDX-License-Identifier: Apache-2.0
"""What a graph computes, as data: numbered values, and steps that make new ones from old ones.

Values are numbered: first the inputs, then the constants, then what steps make. A step is an
operator of the table or a layer of the model; every value is made once, before it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gossamer.errors import InputError
from gossamer.nn.operator_graph.operators import OPERATORS, Attribute


@dataclass(frozen=True)
class PlanInput:
    """One argument; None in `dims` stands for any size, None as `dims` for any rank."""

    name: str
    dtype: str
    dims: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Step:
    """One operator, or one layer if `layer` names it; `origin` is the node it came from."""

    # Stands for an optional input that is not there.
    ABSENT: ClassVar[int] = -1

    operator: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    layer: str | None = None
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.origin or '(unnamed)'} ({self.layer or self.operator})"


@dataclass(frozen=True)
class OperatorPlan:
    """Everything but layers and tensors.

    Attributes:
        inputs: arguments of forward, in order.
        constants: names of the tensors that follow them.
        steps: in an order in which they can run.
        outputs: names and values of the results.
    """

    inputs: tuple[PlanInput, ...]
    constants: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, int], ...]

    @property
    def num_values(self) -> int:
        """Values of a run."""
        made = sum(len(step.outputs) for step in self.steps)
        return len(self.inputs) + len(self.constants) + made


def check_plan(plan: OperatorPlan, layers: set[str], where: str) -> None:
    """Raise InputError unless the plan can run with `layers`."""
    known = set(range(len(plan.inputs) + len(plan.constants)))
    for step in plan.steps:
        fault = _step_fault(step, known, layers)
        if fault is not None:
            raise InputError(f"{where}: {step}: {fault}.")
        for value in step.outputs:
            if value in known or not 0 <= value < plan.num_values:
                raise InputError(f"{where}: {step}: makes value {value}, which is there already.")
            known.add(value)
    for name, value in plan.outputs:
        if value not in known:
            raise InputError(f"{where}: nothing makes the output {name!a}.")
    if not plan.outputs or len({i.name for i in plan.inputs}) != len(plan.inputs):
        raise InputError(f"{where}: has no outputs, or two inputs of one name.")


def _step_fault(step: Step, known: set[int], layers: set[str]) -> str | None:
    missing = [value for value in step.inputs if value not in known and value != step.ABSENT]
    if missing:
        return f"uses value {missing[0]} before it is made"
    if step.layer is not None:
        if step.layer not in layers:
            return f"there is no layer {step.layer!a}"
        lone = len(step.inputs) == len(step.outputs) == 1 and step.ABSENT not in step.inputs
        return None if lone and not step.attributes else "a layer takes one value and makes one"
    if step.operator not in OPERATORS:
        return f"there is no operator {step.operator!a}; known: {', '.join(sorted(OPERATORS))}"
    operator = OPERATORS[step.operator]
    if step.ABSENT in step.inputs[: operator.min_inputs]:
        return "an input that it needs is absent"
    return operator.fault(len(step.inputs), step.attributes)
