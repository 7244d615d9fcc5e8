# SPDX-License-Identifier: Apache-2.0
"""The moment at which the masks are final: the state shrinks, and the log says by how much."""

import statistics
from collections import deque
from collections.abc import Iterator
from typing import Any

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery.compaction import compact
from gossamer.training.loop.processes import Processes
from gossamer.training.memory import measure
from gossamer.training.modes import choose_modes
from gossamer.training.optim import SmallStateOptimizer

_TIMED_STEPS = 10


class CompactionWatch:
    """Compacts the model of a run once, and times the steps before and after."""

    def __init__(self, processes: Processes) -> None:
        self.is_done = False
        self.is_moot = False
        self._processes = processes
        self._before: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._after: list[float] | None = None

    def compact(self) -> dict[str, Any] | None:
        """Compact the model; what changed, or None if there is nothing to do."""
        run = self._processes.run
        settings, model = run.settings, run.model
        if settings.compaction == "off" or not any(sparse_layers(model, "masked")):
            self.is_moot = True
            return None
        bytes_before = measure(model, run.optimizer).total_bytes
        result = compact(model, run.optimizer, mode=settings.mode)
        if settings.split_masters:
            self._split_masters()
        choices = []
        if settings.compaction == "auto":
            choices = choose_modes(model, settings.tokens, example=run.around.example)
        self.is_done = True
        self._after = []
        return {
            "layers": len(result.compacted),
            "left_masked": sorted(result.left_masked),
            "weights": result.num_weights,
            "values": result.num_values,
            "sparsity": self._processes.sparsity(),
            "bytes_before": bytes_before,
            "bytes_after": measure(model, run.optimizer).total_bytes,
            "modes": {choice.layer: choice.mode for choice in choices},
        }

    def after_step(self, elapsed_ms: float) -> Iterator[dict[str, Any]]:
        """Note the time of a step; the comparison, once enough steps after it were timed."""
        if self._after is None:
            self._before.append(elapsed_ms)
            return
        self._after.append(elapsed_ms)
        # The first step after compaction warms up and is unlike the others.
        if len(self._after) == _TIMED_STEPS + 1:
            yield {
                "ms_before": statistics.median(self._before) if self._before else None,
                "ms_after": statistics.median(self._after[1:]),
                "bytes_after": self._processes.state_bytes(),
            }

    def _split_masters(self) -> None:
        run = self._processes.run
        if not isinstance(run.optimizer, SmallStateOptimizer):
            raise InputError(
                f"split_masters: {type(run.optimizer).__name__} has no split masters. Use an"
                " optimizer of gossamer.training.optim."
            )
        layers = [layer for _, layer in sparse_layers(run.model, "compact")]
        run.optimizer.split_masters([layer.values for layer in layers])
        for layer in layers:
            layer.refresh()
