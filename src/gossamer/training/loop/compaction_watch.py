# SPDX-License-Identifier: Apache-2.0
"""The moment at which the masks are final: the state shrinks, and the log says by how much."""

import statistics
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gossamer.errors import InputError
from gossamer.nn import CompactWeight, MaskedWeight
from gossamer.nn.compaction import compact
from gossamer.training.loop.settings import LoopSettings
from gossamer.training.memory.held import measure
from gossamer.training.modes import choose_modes
from gossamer.training.optim import SmallStateOptimizer

if TYPE_CHECKING:
    from gossamer.training.loop.loop import Loop

_TIMED_STEPS = 10


class CompactionWatch:
    """Compacts once, and times the steps before and after."""

    def __init__(self, settings: LoopSettings, example: torch.Tensor | None = None) -> None:
        self.is_done = False
        self.is_moot = False
        self._settings = settings
        self._example = example
        self._before: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._after: list[float] | None = None

    def compact(self, loop: "Loop") -> dict[str, Any] | None:
        """Compact the model of `loop`; what changed, or None if there is nothing to do."""
        masked = any(isinstance(module, MaskedWeight) for module in loop.model.modules())
        if self._settings.compaction == "off" or not masked:
            self.is_moot = True
            return None
        bytes_before = measure(loop.model, loop.optimizer).total_bytes
        result = compact(loop.model, loop.optimizer, mode=self._settings.mode)
        modes: dict[str, str] = {}
        if self._settings.split_masters:
            _split_masters(loop)
        if self._settings.compaction == "auto":
            choices = choose_modes(loop.model, self._settings.tokens, example=self._example)
            modes = {choice.layer: choice.mode for choice in choices}
        self.is_done = True
        self._after = []
        return {
            "layers": len(result.compacted),
            "left_masked": sorted(result.left_masked),
            "weights": result.num_weights,
            "values": result.num_values,
            "sparsity": loop.processes.sparsity(loop),
            "bytes_before": bytes_before,
            "bytes_after": measure(loop.model, loop.optimizer).total_bytes,
            "modes": modes,
        }

    def after_step(self, loop: "Loop", elapsed_ms: float) -> Iterator[dict[str, Any]]:
        """Note the time of a step; the comparison, once enough steps after it were timed."""
        if self._after is None:
            self._before.append(elapsed_ms)
            return
        self._after.append(elapsed_ms)
        # The first step after compaction warms up; it is no step like the others.
        if len(self._after) == _TIMED_STEPS + 1:
            before = statistics.median(self._before) if self._before else None
            yield {
                "ms_before": before,
                "ms_after": statistics.median(self._after[1:]),
                "bytes_after": loop.processes.state_bytes(loop),
            }


def _split_masters(loop: "Loop") -> None:
    if not isinstance(loop.optimizer, SmallStateOptimizer):
        raise InputError(
            f"split_masters: {type(loop.optimizer).__name__} has no split masters. Use an optimizer"
            " of gossamer.training.optim."
        )
    layers = [m for m in loop.model.modules() if isinstance(m, CompactWeight)]
    loop.optimizer.split_masters([layer.values for layer in layers])
    for layer in layers:
        layer.refresh()
