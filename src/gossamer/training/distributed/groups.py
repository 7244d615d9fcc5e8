# SPDX-License-Identifier: Apache-2.0
"""Process groups end while the interpreter is free for the threads that need it.

A thread of gloo lets go of tensors, callbacks and thread-local state after it has told a result,
and needs the interpreter for that. If the last owner of the group is C++ code, such as DDP's
reducer, its end waits for that thread and holds the interpreter: both wait for ever. If the
interpreter itself ends just then, the process aborts ("terminate called without an active
exception"). So Python keeps a handle of each group until the process ends, and gives the
interpreter away for a moment before that.
"""

import atexit
import gc
import time

import torch.distributed as dist

__all__ = ["keep_groups"]

_KEPT: set[dist.ProcessGroup] = set()
_SLEEPS, _SECONDS = 20, 0.01


def keep_groups() -> None:
    """Keep a handle of every process group there is until this process ends."""
    _KEPT.update(dist.distributed_c10d._world.pg_map)
    atexit.unregister(_let_go)
    atexit.register(_let_go)


def _let_go() -> None:
    for _ in range(_SLEEPS):
        time.sleep(_SECONDS)
    gc.collect()  # other owners, if they are in cycles, go first
    _KEPT.clear()
