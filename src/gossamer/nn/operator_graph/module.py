# SPDX-License-Identifier: Apache-2.0
"""A graph of operators as an nn.Module: its layers are ordinary ones, under readable names.

What it computes is data. Values are numbered: first the inputs, then the constants, then what steps
make. A step is an operator of the table or a layer of the model; every value is made once, before
it is used.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from gossamer.errors import GossamerError, InputError
from gossamer.nn.operator_graph.operators import OPERATORS, Attribute
from gossamer.nn.surgery import submodule_at


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


_KEY = re.compile(r"[A-Za-z0-9_]{1,200}")
# What torch raises for shapes and types that do not fit.
_RUN_ERRORS = (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError, OverflowError)


class Outputs(tuple[torch.Tensor, ...]):
    """Several results: by place, or by name as an attribute."""

    names: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> torch.Tensor:
        if name in self.names:
            return self[self.names.index(name)]
        raise AttributeError(f"there is no output {name!r}; there are {', '.join(self.names)}")


@dataclass(frozen=True)
class StoredScales:
    """How a layer was quantised where it comes from; its weight is dequantised here.

    Attributes:
        weight: one scale, or one per output.
        activation: scale of its input, None where that is found at run time or unknown.
        zero_point: of its input.
    """

    weight: torch.Tensor
    activation: float | None
    zero_point: int | None


class GraphModule(nn.Module):
    """Runs a plan. Replace its layers as in any model; the plan finds them by name.

    It is a graph for inference: train() changes nothing in it.

    Attributes:
        plan: the steps.
        constants: tensors that belong to no layer, as buffers.
        stored_scales: of layers that were quantised, by name. They are notes and are not saved:
            what runs in int8 is decided by `gossamer.compile(model, precision="int8")`.
    """

    # The module that holds the constants; no layer may have its name.
    CONSTANTS: ClassVar[str] = "constants"

    def __init__(
        self,
        plan: OperatorPlan,
        layers: Mapping[str, nn.Module],
        constants: Mapping[str, torch.Tensor],
        where: str = "graph",
    ) -> None:
        super().__init__()
        check_plan(plan, set(layers), where)
        _check_paths([*layers, *(f"{self.CONSTANTS}.{name}" for name in plan.constants)], where)
        self.plan = plan
        self.stored_scales: dict[str, StoredScales] = {}
        self.constants = nn.Module()
        for name in plan.constants:
            self.constants.register_buffer(name, constants[name])
        for path, layer in layers.items():
            parent_path, _, key = path.rpartition(".")
            submodule_at(self, parent_path).add_module(key, layer)
        self._paths = tuple(
            () if s.layer is None else tuple(s.layer.split(".")) for s in plan.steps
        )
        self._dead = _last_uses(plan)

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """The output, or an `Outputs` of all of them; inputs by place or by name."""
        plan = self.plan
        values: list[Any] = self._arguments(args, kwargs)
        buffers = self.constants._buffers
        values += [buffers[name] for name in plan.constants]
        values += [None] * (plan.num_values - len(values))
        for step, path, dead in zip(plan.steps, self._paths, self._dead, strict=True):
            given = [None if value == Step.ABSENT else values[value] for value in step.inputs]
            made = self._run(step, path, given)
            if isinstance(made, torch.Tensor):
                values[step.outputs[0]] = made
            else:
                for value, tensor in zip(step.outputs, made, strict=False):
                    values[value] = tensor
            for value in dead:
                values[value] = None
        if len(plan.outputs) == 1:
            return values[plan.outputs[0][1]]
        results = Outputs(values[value] for _, value in plan.outputs)
        results.names = tuple(name for name, _ in plan.outputs)
        return results

    def _run(self, step: Step, path: tuple[str, ...], given: list[Any]) -> Any:
        try:
            if not path:
                return OPERATORS[step.operator].function(*given, **step.attributes)
            layer: Any = self
            for key in path:
                layer = layer._modules[key]
            return layer(given[0])
        except GossamerError as error:
            if path or not isinstance(error, InputError):
                raise
            raise InputError(f"{step}: {error}") from error
        except _RUN_ERRORS as error:
            shapes = ", ".join("none" if x is None else str(list(x.shape)) for x in given)
            raise InputError(
                f"{step}: cannot be computed on shapes {shapes}: {error}. Check the shapes of the"
                " inputs, or the file."
            ) from error

    def _arguments(
        self, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
    ) -> list[torch.Tensor]:
        inputs = self.plan.inputs
        names = [entry.name for entry in inputs]
        given = dict(zip(names, args, strict=False))
        if len(args) + len(kwargs) != len(names) or given.keys() | kwargs.keys() != set(names):
            found = [*names[: len(args)], *kwargs] + ["more"] * (len(args) > len(names))
            raise InputError(
                f"expected the inputs {', '.join(names)}, got {', '.join(found) or 'none'}."
            )
        given.update(kwargs)
        for entry in inputs:
            _check_argument(entry, given[entry.name])
        return [given[name] for name in names]

    def extra_repr(self) -> str:
        """Inputs, steps and outputs."""
        inputs = ", ".join(entry.name for entry in self.plan.inputs)
        outputs = ", ".join(name for name, _ in self.plan.outputs)
        return f"{inputs} -> {outputs}, steps={len(self.plan.steps)}"


def _check_argument(entry: PlanInput, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"input {entry.name}: expected a tensor, got {type(tensor).__name__}.")
    if str(tensor.dtype) != f"torch.{entry.dtype}":
        raise InputError(f"input {entry.name}: expected {entry.dtype}, got {tensor.dtype}.")
    if entry.dims is None:
        return
    fits = len(entry.dims) == tensor.ndim and all(
        wanted in (None, size) for wanted, size in zip(entry.dims, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in entry.dims)
        raise InputError(
            f"input {entry.name}: expected the shape [{wanted}], got {list(tensor.shape)}."
        )


def _last_uses(plan: OperatorPlan) -> tuple[tuple[int, ...], ...]:
    """Values that nobody needs after each step, so that they can be freed."""
    kept = {value for _, value in plan.outputs}
    dead: list[tuple[int, ...]] = []
    for step in reversed(plan.steps):
        last = {*step.inputs, *step.outputs} - kept - {Step.ABSENT}
        kept |= last
        dead.append(tuple(sorted(last)))
    return tuple(reversed(dead))


def _check_paths(paths: list[str], where: str) -> None:
    """Names of attributes, each once, none inside of another; torch refuses what it uses itself."""
    known = set(paths)
    for path in paths:
        keys = path.split(".")
        inner = {".".join(keys[:end]) for end in range(1, len(keys))}
        if not all(_KEY.fullmatch(key) for key in keys) or inner & known:
            raise InputError(f"{where}: a layer or constant cannot be called {path[:200]!a}.")
    if len(known) != len(paths):
        raise InputError(f"{where}: two layers or constants have one name.")
