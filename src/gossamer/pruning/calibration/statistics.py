# SPDX-License-Identifier: Apache-2.0
"""What is known of the inputs of each layer while calibration data flows through a model."""

from collections.abc import Sequence

import torch
from torch import nn

from gossamer.pruning.calibration.batches import Batch
from gossamer.pruning.calibration.flow import Stop
from gossamer.pruning.calibration.moments import cross_gram, input_rows, moments
from gossamer.pruning.solvers.problem import Needed
from gossamer.pruning.targets import Target


class Statistics:
    """Second moments of inputs, computed where a layer is met.

    Args:
        needed: nothing, mean squares or Gram matrices.
        batches: of the flow, for their padding.
    """

    def __init__(self, needed: Needed, batches: Sequence[Batch]) -> None:
        self._needed = needed
        self._batches = batches
        self._ahead: dict[str, torch.Tensor] = {}
        # q, k and v get the same tensors: what was computed for one serves the next.
        self._last: tuple[list[torch.Tensor], torch.Tensor] | None = None

    def of(self, target: Target, stop: Stop) -> torch.Tensor | None:
        """Moments of what enters the layer, [K, K] or [K]; None if none are needed."""
        if self._needed == "none":
            return None
        if target.name in self._ahead:
            return self._ahead[target.name]
        same = self._last is not None and isinstance(target.module, nn.Linear)
        if same and self._last is not None and _are_same(self._last[0], stop.inputs):
            return self._last[1]
        found = moments(target.module, stop.inputs, self._keep(stop), self._needed, target.name)
        self._last = (list(stop.inputs), found) if isinstance(target.module, nn.Linear) else None
        return found

    def drift(self, target: Target, stop: Stop, dense: Stop) -> torch.Tensor:
        """Mean of (x_dense - x) x^T: how far the inputs are from those of the dense model."""
        total: torch.Tensor | None = None
        count = 0
        for x, x_dense, keep in zip(stop.inputs, dense.inputs, self._keep(stop), strict=True):
            rows_TK = input_rows(target.module, x, keep, target.name)
            dense_TK = input_rows(target.module, x_dense, keep, target.name)
            part = cross_gram(dense_TK - rows_TK, rows_TK)
            total = part if total is None else total.add_(part)
            count += len(rows_TK)
        if total is None:
            raise ValueError(f"{target.name}: a stop without batches")
        return total.div_(max(1, count))

    def look_ahead(self, model: nn.Module, targets: Sequence[Target]) -> None:
        """Moments of layers that are used more than once per forward or share their weight.

        They must be complete before the layer is met for the first time, so the dense model gives
        them. The first batch tells which layers these are.
        """
        if self._needed == "none":
            return
        owner = {id(m): t for t in targets for m in (t.module, *(twin for _, twin in t.twins))}
        modules = [m for t in targets for m in (t.module, *(twin for _, twin in t.twins))]
        calls: dict[str, int] = {}

        def count(module: nn.Module, args: object) -> None:
            name = owner[id(module)].name
            calls[name] = calls.get(name, 0) + 1

        _run_with_hooks(model, self._batches[:1], modules, count)
        several = [m for m in modules if calls.get(owner[id(m)].name, 0) > 1]
        if several:
            self._ahead = self._gather(model, several, owner)

    def _gather(
        self, model: nn.Module, modules: Sequence[nn.Module], owner: dict[int, Target]
    ) -> dict[str, torch.Tensor]:
        sums: dict[str, torch.Tensor] = {}
        rows: dict[str, int] = {}
        for batch in self._batches:

            def record(module: nn.Module, args: tuple[torch.Tensor, ...], b: Batch = batch) -> None:
                name = owner[id(module)].name
                num_rows = len(input_rows(module, args[0], b.keep, name))
                if not num_rows:
                    return
                part = moments(module, [args[0]], [b.keep], self._needed, name).mul_(num_rows)
                sums[name] = sums[name] + part if name in sums else part
                rows[name] = rows.get(name, 0) + num_rows

            _run_with_hooks(model, [batch], modules, record)
        return {name: total / rows[name] for name, total in sums.items()}

    def _keep(self, stop: Stop) -> list[torch.Tensor | None]:
        return [self._batches[i].keep for i in stop.batches]


def _are_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


def _run_with_hooks(
    model: nn.Module, batches: Sequence[Batch], modules: Sequence[nn.Module], hook: object
) -> None:
    handles = [module.register_forward_pre_hook(hook) for module in modules]  # type: ignore[arg-type]
    try:
        for batch in batches:
            batch.run(model)
    finally:
        for handle in handles:
            handle.remove()
