# SPDX-License-Identifier: Apache-2.0
"""How many bytes of activations are alive, counted where tensors are made and freed."""

import ctypes
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that operations make inside the block, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            value.untyped_storage()._cdata
            for value in tree_leaves((args, kwargs))
            if isinstance(value, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                storage = value.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in given and key not in self._known:
                    self._known.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._remove, key, size)
        return result

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def give_back_free_memory() -> None:
    """Let the system have the pages that freed tensors left in the heap.

    glibc keeps blocks of up to 32 MiB for later; with batches of activations freed in another order
    than they were made, half of the process would soon be holes. Other libraries have no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
