"""Allocations of every native call fail one by one; run with failing_memory.cpp preloaded.

Prints one JSON line per call: allocations met, and what went wrong.
"""

import ctypes
import json
import sys
import threading
from pathlib import Path

import native_calls
import numpy as np
import torch

from gossamer.errors import ResourceError
from gossamer.ops import _native

NEVER = 10**6
MOST = 25  # allocations of one call that fail; packers make hundreds alike


def code_of(name: str) -> list[tuple[int, int]]:
    """Where the code of a library lies in this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *rest = line.split()
        if "x" in rights and rest and rest[-1].endswith(name):
            first, last = (int(end, 16) for end in span.split("-"))
            found.append((first, last))
    assert found, name
    return found


def outcome(call, memory: ctypes.CDLL, fail_at: int) -> tuple[object, int]:
    """Result or error of a call in a thread of its own, whose scratch is new; allocations met."""
    said: list[object] = []

    def work() -> None:
        torch.set_num_threads(2)
        memory.arm(fail_at)
        try:
            said.append(call())
        except BaseException as error:
            said.append(error)
        said.append(memory.disarm())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    got = torch.from_numpy(said[0]) if isinstance(said[0], np.ndarray) else said[0]
    return got, int(said[1])


def drill(call, memory: ctypes.CDLL) -> dict[str, object]:
    """Let one allocation after the other fail, and call again in peace after each."""
    wanted, met = outcome(call, memory, NEVER)
    if not isinstance(wanted, torch.Tensor):
        return {"met": met, "wrong": [f"without a failure: {wanted!r}"]}
    wrong = []
    for number in range(0, met, 1 + met // MOST):
        got, met_now = outcome(call, memory, number)
        if met_now <= number:  # threads share work differently each time
            if not isinstance(got, torch.Tensor) or not torch.equal(got, wanted):
                wrong.append(f"in peace: {got!r}"[:300])
        elif not isinstance(got, ResourceError) or "out of memory" not in str(got):
            wrong.append(f"allocation {number}: {type(got).__name__}: {got}"[:300])
        after, _ = outcome(call, memory, NEVER)
        if not isinstance(after, torch.Tensor) or not torch.equal(after, wanted):
            wrong.append(f"after allocation {number}: {after!r}"[:300])
    return {"met": met, "wrong": wrong}


def main(library: str) -> None:
    """Drill all calls."""
    memory = ctypes.CDLL(library)
    memory.watch.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    memory.disarm.restype = ctypes.c_long
    native, torches = code_of(Path(_native.__file__).name), code_of("libc10.so")
    for name, call in native_calls.calls().items():
        memory.forget()
        for span in native if native_calls.is_partly_torch(name) else native + torches:
            memory.watch(*span)
        print(json.dumps({"call": name, **drill(call, memory)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
