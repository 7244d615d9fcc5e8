# SPDX-License-Identifier: Apache-2.0
"""What is known of the inputs of each layer while calibration data flows through a model.

Second moments: the Gram matrix of the inputs, or only its diagonal. The first rows themselves, for
scorers that look at activations.

Legend: T rows (tokens, or image patches), K columns (inputs of one output).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import unfold

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.layer_weights import num_parts
from gossamer.pruning.calibration.flow import Stop, evaluating, hooked
from gossamer.pruning.solvers import Needed
from gossamer.pruning.targets import Target

__all__ = [
    "Statistics",
    "collect_inputs",
    "gram",
]

# The Gram matrix is symmetric: strips of columns compute the upper part only, 5/8 of the work.
_STRIPS = 4
_MIN_STRIP = 64
# Rows kept per layer: the first ones seen. 4096 x 768 floats are 12 MiB.
MAX_ROWS = 4096


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
        shares = isinstance(target.module, nn.Linear)
        if shares and self._last and [*map(id, self._last[0])] == [*map(id, stop.inputs)]:
            return self._last[1]
        found = moments(self._rows(target, stop), self._needed, target.name)
        self._last = (list(stop.inputs), found) if shares else None
        return found

    def drift(self, target: Target, stop: Stop, dense: Stop) -> torch.Tensor:
        """Mean of (x_dense - x) x^T: how far the inputs are from those of the dense model."""
        pairs = zip(self._rows(target, stop), self._rows(target, dense), strict=True)
        parts = (((dense_TK - rows_TK).T @ rows_TK, len(rows_TK)) for rows_TK, dense_TK in pairs)
        return _mean(parts, target.name)

    def look_ahead(self, model: nn.Module, targets: Sequence[Target]) -> None:
        """Moments of layers that are used more than once per forward or share their weight.

        They must be complete before the layer is met for the first time, so the dense model gives
        them. The first batch tells which layers these are.
        """
        if self._needed == "none":
            return
        names = _names(targets)
        calls: Counter[str] = Counter()

        def count(batch: Batch, module: nn.Module, args: object) -> None:
            calls[names[module]] += 1

        _run_with_hooks(model, self._batches[:1], names, count)
        several = {module: name for module, name in names.items() if calls[name] > 1}
        routed = [name for module, name in several.items() if num_parts(module) > 1]
        if routed:
            raise InputError(
                f"{routed[0]}: these experts are used more than once per forward or share their"
                " weight; statistics of their tokens are not built for that. Use the magnitude"
                f" scorer, or add {routed[0]!r} to ignore=[...]."
            )
        if several:
            self._ahead = self._gather(model, several)

    def _gather(self, model: nn.Module, names: dict[nn.Module, str]) -> dict[str, torch.Tensor]:
        sums: dict[str, torch.Tensor] = {}
        rows: Counter[str] = Counter()

        def record(batch: Batch, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            name = names[module]
            rows_TK = input_rows(module, args[0], batch.keep, name)
            if len(rows_TK):
                part = moments([rows_TK], self._needed, name).mul_(len(rows_TK))
                sums[name] = sums[name] + part if name in sums else part
                rows[name] += len(rows_TK)

        _run_with_hooks(model, self._batches, names, record)
        return {name: total / rows[name] for name, total in sums.items()}

    def _rows(self, target: Target, stop: Stop) -> Iterator[torch.Tensor]:
        for x, number in zip(stop.inputs, stop.batches, strict=True):
            yield input_rows(target.module, x, self._batches[number].keep, target.name)


def collect_inputs(
    model: nn.Module, targets: list[Target], data: Iterable[Any] | None, scorer: str
) -> dict[str, torch.Tensor]:
    """Rows [T, K] that enter each target while the model reads `data`, T <= MAX_ROWS.

    The model runs in eval mode without gradients and gets its mode back.

    Args:
        model: called once per batch.
        targets: Linear layers.
        data: batches; a tensor is the first argument of the model, a list or tuple its arguments,
            a mapping its keyword arguments.
        scorer: who asks, for messages.
    """
    if data is None:
        raise InputError(f"scorer {scorer!r} needs activations: give batches with data=[...].")
    for target in targets:
        if not isinstance(target.module, nn.Linear):
            raise InputError(
                f"{target.name}: scorer {scorer!r} needs activations, which are collected for"
                f" Linear layers only. Add ignore=[{type(target.module).__name__!r}]."
            )
    names = _names(targets)
    rows: dict[str, list[torch.Tensor]] = {target.name: [] for target in targets}

    def record(batch: Batch, module: nn.Module, args: tuple[Any, ...]) -> None:
        seen = rows[names[module]]
        missing = MAX_ROWS - sum(len(part) for part in seen)
        if missing > 0 and args:
            flat = args[0].detach().reshape(-1, args[0].shape[-1])
            if len(flat):
                seen.append(flat[:missing].clone())

    with evaluating(model), torch.no_grad():
        _run_with_hooks(model, (Batch(item) for item in data), names, record)
    for name, seen in rows.items():
        if not seen:
            raise InputError(
                f"{name}: no calibration batch reached this layer, so scorer {scorer!r} cannot"
                f" rank it. Give other data, or add {name!r} to ignore=[...]."
            )
    return {name: torch.cat(seen) for name, seen in rows.items()}


def _names(targets: Sequence[Target]) -> dict[nn.Module, str]:
    """The name of the target behind each module, twins included."""
    return {
        module: target.name
        for target in targets
        for module in (target.module, *(twin for _, twin in target.twins))
    }


def _run_with_hooks(
    model: nn.Module,
    batches: Iterable[Batch],
    modules: Iterable[nn.Module],
    hook: Callable[..., None],
) -> None:
    """Run all batches; `hook(batch, module, args)` is called before each of `modules`."""
    for batch in batches:
        look = partial(hook, batch)
        with hooked([module.register_forward_pre_hook(look) for module in modules]):
            batch.run(model)


def moments(rows: Iterable[torch.Tensor], needed: Needed, where: str) -> torch.Tensor:
    """Mean outer product [K, K] (or mean squares [K]) of all rows [T, K] together.

    Args:
        rows: one tensor per batch.
        needed: "gram" or "squares".
        where: the layer's name, for messages.
    """
    squares = needed == "squares"
    mean = _mean(
        ((part.square().sum(dim=0) if squares else gram(part), len(part)) for part in rows), where
    )
    if not torch.isfinite(mean).all():
        raise InputError(
            f"{where}: its inputs on the calibration data are NaN or too large to square. Run the"
            " model on the data and look at this layer."
        )
    return mean


def _mean(parts: Iterable[tuple[torch.Tensor, int]], where: str) -> torch.Tensor:
    """The sum of all (sum over rows, number of rows), per row."""
    total: torch.Tensor | None = None
    count = 0
    for part, num_rows in parts:
        total = part if total is None else total.add_(part)
        count += num_rows
    if total is None or not count:
        raise InputError(f"{where}: no row of the calibration data reached this layer.")
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
