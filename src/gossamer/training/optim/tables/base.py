# SPDX-License-Identifier: Apache-2.0
"""Optimizers of tables: a step moves the rows that were looked up and leaves the others alone.

They take the Parameters of `gossamer.nn.Embedding` and `EmbeddingBag`, float32 or codes, or of
stock tables with sparse gradients, and stand beside another optimizer for the dense part. A fused
one moves rows inside the backward, while they are in the cache, with the same results; gradients
are then never there to be looked at. Decay is refused: it would touch every row at every step.

Codes are trained without a shadow, by stochastic rounding. Its noise is a function of the seed, the
number of the step, the table and the row, so a resumed run repeats it.

Legend: V rows, D columns (width).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.optimizer_state import Convert
from gossamer.ops.table import Rows
from gossamer.ops.table.training import (
    Backward,
    RowGradient,
    RowRule,
    RowSink,
    move_rows,
    row_gradient,
)

_WORD = 2**64
_PER_STEP, _PER_TABLE = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class TableOptimizer(torch.optim.Optimizer):
    """What optimizers of rows share.

    Args:
        params: table Parameters or groups of them.
        defaults: settings of groups.
        fused: move rows inside the backward. Then a table is looked up once per step, and
            gradients are not accumulated.
        seed: of stochastic rounding.
        weight_decay: must be 0.
    """

    STATE: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        fused: bool = False,
        seed: int = 0,
        weight_decay: float = 0.0,
    ) -> None:
        if weight_decay:
            raise InputError(
                f"{type(self).__name__}: weight decay would move every row of a table at every"
                " step. Leave it 0 for tables, and give the dense part an optimizer of its own."
            )
        if defaults["lr"] < 0 or defaults.get("eps", 0.0) < 0:
            raise InputError(f"{type(self).__name__}: lr and eps must not be negative.")
        self._moved: set[int] = set()
        self._fused = fused
        super().__init__(params, {**defaults, "seed": seed, "weight_decay": 0.0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; Parameters are matrices, and their groups have no decay."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group.get("weight_decay"):
            raise InputError(f"{type(self).__name__}: tables have no weight decay.")
        for param in group["params"]:
            if param.ndim != 2:
                raise InputError(
                    f"{type(self).__name__}: takes the matrices of tables, got a Parameter"
                    f" {list(param.shape)}. Give the others to another optimizer."
                )
            if self._fused:
                RowSink(self._take).leave_on(param)

    @abstractmethod
    def _rule(self, group: dict[str, Any], state: dict[str, Any], noise: int) -> RowRule:
        """The step with number `state["step"]`."""

    @abstractmethod
    def _fresh(self, param: nn.Parameter, width: int, group: dict[str, Any]) -> dict[str, Any]:
        """State before the first step, without its number."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move rows by the gradients that are there; where rows were moved already, do nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group, param in self._params():
            found = row_gradient(param, take=True)
            if param.grad is not None:
                found = (Rows(param, param.shape[1]), self._row_gradient(param))
            if found is None:
                continue
            rows, gradient = found
            move_rows(rows, gradient, self._next(index, group, param, rows))
        self._moved.clear()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients, also those of codes."""
        super().zero_grad(set_to_none)
        for _, _, param in self._params():
            row_gradient(param, take=True)

    def mapped_state(self, param: nn.Parameter, convert: Convert) -> dict[str, Any]:
        """The state of `param` at other rows; `convert` takes tensors with an entry for each."""
        held = dict(self.state.get(param, {}))
        return {key: convert(value) if value.ndim else value for key, value in held.items()}

    def _params(self) -> Iterable[tuple[int, dict[str, Any], nn.Parameter]]:
        index = 0
        for group in self.param_groups:
            for param in group["params"]:
                yield index, group, param
                index += 1

    def _row_gradient(self, param: nn.Parameter) -> RowGradient:
        gradient = param.grad
        if gradient is None or gradient.layout is not torch.sparse_coo:
            raise InputError(
                f"{type(self).__name__}: expected the sparse gradient of a table, found a dense"
                " one. A table that is tied to an output layer, or a stock one without"
                " sparse=True, has dense gradients: give it to another optimizer."
            )
        return RowGradient.of_sparse(gradient)

    def _next(self, index: int, group: dict[str, Any], param: nn.Parameter, rows: Rows) -> RowRule:
        """The rule of the next step of a table, whose number goes up."""
        state = self.state[param]
        if not state:
            state.update({"step": torch.tensor(0), **self._fresh(param, rows.width, group)})
        state["step"] += 1
        number = int(state["step"])
        noise = (int(group["seed"]) + number * _PER_STEP + (index + 1) * _PER_TABLE) % _WORD
        return self._rule(group, state, noise)

    @torch.no_grad()
    def _take(self, param: torch.Tensor, backward: Backward) -> None:
        """Inside the backward: move rows at once."""
        index, group, own = next(found for found in self._params() if found[2] is param)
        if id(param) in self._moved:
            raise InputError(
                f"{type(self).__name__}: fused, a table was looked up twice before step(). Call"
                " step() after every backward, or use fused=False: gradients are added up then."
            )
        self._moved.add(id(param))
        rule = self._next(index, group, own, backward.rows)
        backward.update(rule.native())
