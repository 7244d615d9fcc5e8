# SPDX-License-Identifier: Apache-2.0
"""What is known of the inputs of each layer while calibration data flows through a model.

Second moments: the Gram matrix of the inputs, or only its diagonal.

Legend: T rows (tokens, or image patches), K columns (inputs of one output).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.functional import unfold

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.pruning.calibration.flow import Stop
from gossamer.pruning.calibration.modes import hooked
from gossamer.pruning.solvers import Needed
from gossamer.pruning.targets import Target

# The Gram matrix is symmetric: strips of columns compute the upper part only, 5/8 of the work.
_STRIPS = 4
_MIN_STRIP = 64


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
            part = (dense_TK - rows_TK).T @ rows_TK
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
        names: dict[nn.Module, str] = {
            module: target.name
            for target in targets
            for module in (target.module, *(twin for _, twin in target.twins))
        }
        calls: Counter[str] = Counter()

        def count(module: nn.Module, args: object) -> None:
            calls[names[module]] += 1

        _run_with_hooks(model, self._batches[:1], names, count)
        several = {module: name for module, name in names.items() if calls[name] > 1}
        if several:
            self._ahead = self._gather(model, several)

    def _gather(self, model: nn.Module, names: dict[nn.Module, str]) -> dict[str, torch.Tensor]:
        sums: dict[str, torch.Tensor] = {}
        rows: Counter[str] = Counter()
        for batch in self._batches:

            def record(module: nn.Module, args: tuple[torch.Tensor, ...], b: Batch = batch) -> None:
                name = names[module]
                num_rows = len(input_rows(module, args[0], b.keep, name))
                if not num_rows:
                    return
                part = moments(module, [args[0]], [b.keep], self._needed, name).mul_(num_rows)
                sums[name] = sums[name] + part if name in sums else part
                rows[name] += num_rows

            _run_with_hooks(model, [batch], names, record)
        return {name: total / rows[name] for name, total in sums.items()}

    def _keep(self, stop: Stop) -> list[torch.Tensor | None]:
        return [self._batches[i].keep for i in stop.batches]


def _are_same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


def _run_with_hooks(
    model: nn.Module, batches: Sequence[Batch], modules: Iterable[nn.Module], hook: object
) -> None:
    with hooked([module.register_forward_pre_hook(hook) for module in modules]):  # type: ignore[arg-type]
        for batch in batches:
            batch.run(model)


def moments(
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    keep: Sequence[torch.Tensor | None],
    needed: Needed,
    where: str,
) -> torch.Tensor:
    """Mean outer product [K, K] (or mean squares [K]) of the rows that enter `module`.

    Args:
        module: Linear or Conv2d.
        inputs: one tensor per batch.
        keep: which positions of each batch count, bool [B, T]; None for all.
        needed: "gram" or "squares".
        where: the layer's name, for messages.
    """
    total: torch.Tensor | None = None
    count = 0
    for x, kept in zip(inputs, keep, strict=True):
        rows_TK = input_rows(module, x, kept, where)
        part = rows_TK.square().sum(dim=0) if needed == "squares" else gram(rows_TK)
        total = part if total is None else total.add_(part)
        count += len(rows_TK)
    if total is None or not count:
        raise InputError(f"{where}: no row of the calibration data reached this layer.")
    if not bool(torch.isfinite(total).all()):
        raise InputError(
            f"{where}: its inputs on the calibration data are NaN or too large to square. Run the"
            " model on the data and look at this layer."
        )
    return total.div_(count)


def input_rows(
    module: nn.Module, x: torch.Tensor, keep: torch.Tensor | None, where: str
) -> torch.Tensor:
    """What one output sees, a row per token or pixel: float32 (or float64) [T, K]."""
    if isinstance(module, nn.Conv2d):
        if module.groups != 1 or isinstance(module.padding, str):
            raise InputError(
                f"{where}: statistics of inputs are built for convolutions without groups and with"
                " padding in numbers. Use the magnitude scorer, or add the layer to ignore=[...]."
            )
        patches = unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
        rows = patches.transpose(1, 2).flatten(0, 1)
    else:
        if keep is not None and x.shape[: keep.ndim] == keep.shape:
            x = x[keep]
        rows = x.reshape(-1, x.shape[-1])
    return rows if rows.dtype == torch.float64 else rows.float()


def gram(rows_TK: torch.Tensor) -> torch.Tensor:
    """X^T X."""
    width = rows_TK.shape[1]
    result_KK = rows_TK.new_empty(width, width)
    step = max(_MIN_STRIP, -(-width // _STRIPS))
    for first in range(0, width, step):
        last = min(first + step, width)
        strip = rows_TK[:, first:last].T @ rows_TK[:, first:]
        result_KK[first:last, first:] = strip
        result_KK[first:, first:last] = strip.T
    return result_KK
