# SPDX-License-Identifier: Apache-2.0
"""Whether structured communication would pay here: rehearsed, because a formula knows no CPU.

Compressors that are slower than nothing are the common complaint about compressors. All ranks
rehearse at once, because they share cores and links when it counts, too.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist

_REPEATS = 5


@dataclass(frozen=True)
class ExchangeForecast:
    """Seconds of communication per step, the slowest rank's.

    Attributes:
        dense_seconds: copying the whole gradient into a bucket, an all-reduce, copying it back.
        packed_seconds: an all-reduce of what is sent.
        local_seconds: choosing, scoring, packing and unpacking.
    """

    dense_seconds: float
    packed_seconds: float
    local_seconds: float

    @property
    def gain(self) -> float:
        """How many times less communication costs."""
        return self.dense_seconds / max(self.packed_seconds + self.local_seconds, 1e-9)

    def __str__(self) -> str:
        dense, packed, local = (f"{seconds * 1e3:.1f} ms" for seconds in astuple(self))
        return (
            f"a dense exchange takes {dense}, a structured one {packed} and {local} of work, a"
            f" gain of {self.gain:.2f}"
        )


def measure_forecast(
    rehearse: Callable[[torch.Tensor, torch.Tensor], float],
    like: torch.Tensor,
    num_elements: int,
    group: dist.ProcessGroup | None,
) -> ExchangeForecast:
    """Measure on all ranks at once; all get the same numbers.

    Args:
        rehearse: a structured step on a gradient of zeros, with a bucket beside it; the seconds of
            its collective.
        like: has the dtype and device of gradients.
        num_elements: of the gradient.
        group: the ranks.
    """
    gradient, bucket = like.new_zeros(num_elements), like.new_zeros(num_elements)

    def dense() -> None:
        bucket.copy_(gradient)
        dist.all_reduce(bucket, group=group)
        gradient.copy_(bucket)

    packed: list[float] = []
    dense_seconds = _typical(dense, group)
    structured_seconds = _typical(lambda: packed.append(rehearse(gradient, bucket)), group)
    packed_seconds = statistics.median(packed)
    seconds = torch.tensor(
        [dense_seconds, packed_seconds, structured_seconds - packed_seconds], dtype=torch.float64
    )
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return ExchangeForecast(*seconds.tolist())


def _typical(action: Callable[[], object], group: dist.ProcessGroup | None) -> float:
    taken = []
    for _ in range(_REPEATS):
        dist.barrier(group)
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
