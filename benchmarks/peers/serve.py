# SPDX-License-Identifier: Apache-2.0
"""The side of a peer that computes one linear layer at a time.

    {"load": {"weight": "w.npy", "x": "x.npy", "y": "y.npy", "task": "forward", "threads": 1}}
        -> {}                      y.npy then holds what the peer computed, for comparison
    {"turn": null}
        -> {"seconds": 0.0012}     its fastest call of a turn

Run in the peer's own environment: only numpy may be expected. `answer` and `turn` are found by the
PYTHONPATH that `gossamer.running.rivals.engines` sets.
"""

import numpy as np
from answer import answer
from turn import turn


def serve(prepare):
    """Answer until stdin ends.

    Args:
        prepare: (weight [R, K], x [T, K], task, threads) -> callable without arguments that gives
            y [T, R]; for task "step" also the gradients, which are not compared.
    """
    ready = []

    def load(case):
        threads = case["threads"]
        run = prepare(np.load(case["weight"]), np.load(case["x"]), case["task"], threads)
        np.save(case["y"], run())
        ready[:] = run, threads
        return {}

    answer({"load": load, "turn": lambda _: {"seconds": turn(*ready)}})


def forward_only(task):
    """Refuse training where a peer cannot do it."""
    if task != "forward":
        raise NotImplementedError(f"task {task!r}")
