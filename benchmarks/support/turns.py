# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a benchmark agree on behind their turns."""

import time

import torch
import torch.distributed as dist


def any_late(end):
    """Whether a rank's clock is past `end`; the same answer on all of them."""
    late = torch.tensor([float(time.monotonic() > end)])
    dist.all_reduce(late)
    return bool(late)


def take_slowest(found):
    """Make every series of `found` (contender -> name -> numbers) the largest of all ranks."""
    for own in found.values():
        for name, series in own.items():
            slowest = torch.tensor(series, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            own[name] = slowest.tolist()
