# SPDX-License-Identifier: Apache-2.0
"""The optimizers of tables: plain SGD, row-wise Adagrad, Adam on the rows that were looked up."""

from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.ops.table import settled
from gossamer.ops.table.training import RowRule
from gossamer.training.optim.tables.base import TableOptimizer


class TableSGD(TableOptimizer):
    """Plain SGD on rows: w -= lr g.

    Args:
        params: table Parameters or groups of them.
        lr: learning rate.
        fused, seed: see `TableOptimizer`.
        weight_decay: must be 0.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        *,
        fused: bool = False,
        seed: int = 0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr}, fused=fused, seed=seed, weight_decay=weight_decay)

    def _fresh(self, param: nn.Parameter, width: int, group: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _rule(self, group: dict[str, Any], state: dict[str, Any], noise: int) -> RowRule:
        return RowRule("sgd", float(group["lr"]), noise=noise)


class TableAdagrad(TableOptimizer):
    """Row-wise Adagrad: h += mean(g^2), w -= lr / (sqrt(h) + eps) g; 4 bytes of state for a row.

    Args:
        params: table Parameters or groups of them.
        lr: learning rate.
        eps: added to the root.
        initial: h before the first step.
        fused, seed: see `TableOptimizer`.
        weight_decay: must be 0.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        *,
        eps: float = 1e-8,
        initial: float = 0.0,
        fused: bool = False,
        seed: int = 0,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "initial": initial}
        super().__init__(params, defaults, fused=fused, seed=seed, weight_decay=weight_decay)

    def _fresh(self, param: nn.Parameter, width: int, group: dict[str, Any]) -> dict[str, Any]:
        return {"sums": settled(torch.full((len(param),), float(group["initial"])))}

    def _rule(self, group: dict[str, Any], state: dict[str, Any], noise: int) -> RowRule:
        lr, eps = float(group["lr"]), float(group["eps"])
        return RowRule("adagrad", lr, eps, sums=state["sums"], noise=noise)


class TableAdam(TableOptimizer):
    """Adam whose moments move where rows were looked up, as `torch.optim.SparseAdam` does it.

    Its moments are 8 bytes per weight, so it is for tables with a float32 shadow.

    Args:
        params: table Parameters or groups of them.
        lr: learning rate.
        betas: decay of the moments.
        eps: added to the root.
        fused: see `TableOptimizer`.
        weight_decay: must be 0.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"TableAdam: betas must be in [0, 1), got {betas}.")
        defaults = {"lr": lr, "betas": betas, "eps": eps}
        super().__init__(params, defaults, fused=fused, weight_decay=weight_decay)

    def _fresh(self, param: nn.Parameter, width: int, group: dict[str, Any]) -> dict[str, Any]:
        if not param.is_floating_point():
            raise InputError(
                "TableAdam: moments of 8 bytes per weight for codes of one byte or less. Use"
                " TableAdagrad, or a table with a shadow."
            )
        return {key: settled(torch.zeros_like(param)) for key in ("means", "squares")}

    def _rule(self, group: dict[str, Any], state: dict[str, Any], noise: int) -> RowRule:
        first, second = group["betas"]
        number = int(state["step"])
        lr = float(group["lr"]) * (1 - second**number) ** 0.5 / (1 - first**number)
        return RowRule(
            "adam",
            lr,
            float(group["eps"]),
            1 - first,
            1 - second,
            means=state["means"],
            squares=state["squares"],
        )
