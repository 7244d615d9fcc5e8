# SPDX-License-Identifier: Apache-2.0
"""Whether structured communication would pay here: measured, because a formula knows no CPU.

Compressors that are slower than nothing are the common complaint about compressors.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from gossamer.train.distributed.tasc_blocks import Residual

_REPEATS = 3


@dataclass(frozen=True)
class Forecast:
    """Seconds of communication per step, the slowest rank's.

    Attributes:
        dense_seconds: an all-reduce of the whole gradient.
        packed_seconds: an all-reduce of what is sent.
        local_seconds: scoring, packing and unpacking.
    """

    dense_seconds: float
    packed_seconds: float
    local_seconds: float

    @property
    def gain(self) -> float:
        """How many times less communication costs."""
        return self.dense_seconds / max(self.packed_seconds + self.local_seconds, 1e-9)

    def as_dict(self) -> dict[str, float]:
        """Plain values, for a checkpoint."""
        return asdict(self)

    def __str__(self) -> str:
        milliseconds = {name: f"{value * 1e3:.1f} ms" for name, value in asdict(self).items()}
        return (
            f"a dense all-reduce takes {milliseconds['dense_seconds']}, a structured one"
            f" {milliseconds['packed_seconds']} and {milliseconds['local_seconds']} of work, a"
            f" gain of {self.gain:.2f}"
        )


def measure_forecast(
    residuals: Sequence[Residual],
    num_elements: int,
    density: float,
    group: dist.ProcessGroup | None,
) -> Forecast:
    """Measure on all ranks at once; all get the same numbers. Residuals are left as they are."""
    dtype = residuals[0].held_RN.dtype
    device = residuals[0].held_RN.device
    dense = torch.zeros(num_elements, dtype=dtype, device=device)
    packed = torch.zeros(max(1, int(density * num_elements)), dtype=dtype, device=device)
    scores = torch.zeros(max(r.cut.num_blocks for r in residuals), dtype=dtype, device=device)

    def work_locally() -> None:
        at = 0
        for residual in residuals:
            zeros = dense[at : at + residual.cut.blocked].view(-1, residual.cut.block_size)
            residual.absorb(zeros, scores[: residual.cut.num_blocks])
            at += residual.cut.blocked
        dense.zero_()

    seconds = torch.tensor(
        [
            _best(lambda: dist.all_reduce(dense, group=group), group),
            _best(lambda: dist.all_reduce(packed, group=group), group),
            _best(work_locally, group),
        ],
        dtype=torch.float64,
    )
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return Forecast(*seconds.tolist())


def _best(action: Callable[[], object], group: dist.ProcessGroup | None) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        dist.barrier(group)
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best
