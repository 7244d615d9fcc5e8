# SPDX-License-Identifier: Apache-2.0
"""The operators a graph may use, what each one takes, and how large its result can be.

A function is its own description: positional parameters are inputs, keyword-only ones are
attributes with their types, or with defaults of these types. Whatever is not in a signature is
refused by name, so an attribute of a newer opset cannot be overlooked.
"""

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from gossamer.nn.operator_graph.operators.elementwise import BROADCASTING, ONE, TWO, UNARY
from gossamer.nn.operator_graph.operators.quantised import QUANTISED, conv_integer
from gossamer.nn.operator_graph.operators.reducing import REDUCING
from gossamer.nn.operator_graph.operators.shaping import SHAPING, broadcast
from gossamer.nn.operator_graph.operators.windows import WINDOWS, conv

Attribute = int | float | str | tuple[int, ...]
_WORDS = {int: "a whole number", float: "a finite number", str: "a text"}


@dataclass(frozen=True)
class Operator:
    """One row: `max_inputs` is None where any number of inputs may follow."""

    function: Callable[..., Any]
    min_inputs: int
    max_inputs: int | None
    attributes: dict[str, type] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def fault(self, num_inputs: int, attributes: Mapping[str, object]) -> str | None:
        """What is wrong with a use of this operator, None if nothing is."""
        if num_inputs < self.min_inputs or num_inputs > (self.max_inputs or num_inputs):
            most = "any number" if self.max_inputs is None else self.max_inputs
            return f"{num_inputs} inputs, expected {self.min_inputs} to {most}"
        unknown = sorted(set(attributes) - set(self.attributes))
        if unknown:
            known = ", ".join(sorted(self.attributes)) or "none"
            return f"the attribute {unknown[0]!a} is not computed; known: {known}"
        missing = sorted(self.required - set(attributes))
        if missing:
            return f"the attribute {missing[0]!a} is missing"
        for name, value in attributes.items():
            if not _fits(value, self.attributes[name]):
                expected = _WORDS.get(self.attributes[name], "a list of whole numbers")
                return f"the attribute {name!a} must be {expected}, got {ascii(value)[:80]}"
        return None


def _fits(value: object, kind: type) -> bool:
    if kind is tuple:
        return type(value) is tuple and all(type(entry) is int for entry in value)
    if kind is float:
        return type(value) in (int, float) and math.isfinite(typing.cast(float, value))
    return type(value) is kind


def _describe(function: Callable[..., Any]) -> Operator:
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    inputs = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    return Operator(
        function=function,
        min_inputs=sum(p.default is p.empty for p in inputs),
        max_inputs=None if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(inputs),
        attributes={p.name: _plain_type(hints.get(p.name, type(p.default))) for p in named},
        required=frozenset(p.name for p in named if p.default is p.empty),
    )


def _plain_type(hint: Any) -> type:
    """`tuple` for `tuple[int, ...] | None`, `int` for `int`."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    plain: type = typing.get_origin(hint) or hint
    return plain


OPERATORS: Mapping[str, Operator] = types.MappingProxyType(
    {name: Operator(function, 1, 1) for name, function in ONE.items()}
    | {name: Operator(function, 2, 2) for name, function in TWO.items()}
    | {"ConvInteger": replace(_describe(conv), function=conv_integer, max_inputs=4)}
    | {
        name: _describe(function)
        for part in (BROADCASTING, UNARY, SHAPING, REDUCING, WINDOWS, QUANTISED)
        for name, function in part.items()
    }
)
# Operators whose results are no larger than their largest input.
_NEVER_LARGER = {
    *ONE, *UNARY, "DequantizeLinear", "QuantizeLinear", "Flatten", "Reshape", "Shape", "Size",
    "Slice", "Split", "Squeeze", "Transpose", "Trilu", "Unsqueeze", "CumSum", "ArgMax", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Softmax",
}  # fmt: skip


def largest_result(operator: str, given: list[Tensor], axis: int) -> int | None:
    """A bound of the elements of a result, None where nobody can tell.

    Args:
        operator: a name of the table.
        given: its inputs.
        axis: its attribute, where it has one.
    """
    total = sum(tensor.numel() for tensor in given)
    if operator in _NEVER_LARGER or operator == "Concat":
        return total
    if operator in TWO or operator in BROADCASTING:
        return math.prod(broadcast(*(tensor.shape for tensor in given)))
    if operator == "ConstantOfShape":
        return abs(math.prod(int(size) for size in given[0].tolist()))
    if operator == "Expand":
        return abs(math.prod(broadcast(given[0].shape, given[1].tolist())))
    if operator == "Gather":
        return given[0].numel() // max(1, given[0].shape[axis]) * given[1].numel()
    if operator == "Range":
        first, last, step = (float(tensor) for tensor in given)
        return math.ceil(abs((last - first) / step)) if step else 0
    # Products of matrices and the like: small ones only.
    return total * total if total <= 4096 else None
