# SPDX-License-Identifier: Apache-2.0
"""The side of a peer: one JSON line asks, one JSON line answers.

    {"load": {"weight": "w.npy", "x": "x.npy", "y": "y.npy", "task": "forward", "threads": 1}}
        -> {"ready": true}         y.npy then holds what the peer computed, for comparison
    {"turn": true}
        -> {"seconds": 0.0012}     its fastest call of a turn
    anything that fails
        -> {"error": "..."}

Run in the peer's own environment: only numpy may be expected.
"""

import json
import os
import sys

import numpy as np
from turn import turn


def serve(prepare):
    """Answer until stdin ends.

    Args:
        prepare: (weight [R, K], x [T, K], task, threads) -> callable without arguments that gives
            y [T, R]; for task "step" also the gradients, which are not compared.
    """
    # Libraries print banners: what they write to stdout goes to stderr, answers to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run, threads = None, 1
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "load" in question:
                case = question["load"]
                threads = case["threads"]
                run = prepare(np.load(case["weight"]), np.load(case["x"]), case["task"], threads)
                np.save(case["y"], run())
                answer = {"ready": True}
            else:
                answer = {"seconds": turn(run, threads)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def forward_only(task):
    """Refuse training where a peer cannot do it."""
    if task != "forward":
        raise NotImplementedError(f"task {task!r}")
