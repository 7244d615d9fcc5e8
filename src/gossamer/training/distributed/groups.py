# SPDX-License-Identifier: Apache-2.0
"""Process groups end when nobody waits for them any more.

A thread of gloo lets go of tensors, callbacks and thread-local state after it has told a result,
and needs the interpreter for that. If the last owner of the group is C++ code, such as DDP's
reducer, its end waits for that thread and holds the interpreter: both wait for ever. A handle of
Python gives the interpreter away while it waits. So Python keeps one of each group, and drops it
last.
"""

import atexit
import gc

import torch.distributed as dist

__all__ = ["keep_groups"]

_KEPT: set[dist.ProcessGroup] = set()


def keep_groups() -> None:
    """Keep a handle of every process group there is until this process ends."""
    _KEPT.update(dist.distributed_c10d._world.pg_map)
    atexit.unregister(_drop)
    atexit.register(_drop)


def _drop() -> None:
    gc.collect()  # owners in cycles go first
    _KEPT.clear()
