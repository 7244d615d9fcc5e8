# SPDX-License-Identifier: Apache-2.0
"""Encoders in the process of an engine, several at a time, each under a name.

{"load": {"name": "a", "arrays": "a.npz", "ids": "ids.npy", "y": "y.npy", "precision": "fp32",
          "threads": 1}}           y.npy then holds the last hidden state, for comparison;
                                   "calibration": "c.npz" has ids and mask to quantise by
{"encode": {"name": "a", "inputs": "i.npz", "y": "y.npy"}}   any number of sequences, with mask
{"turn": "a"}  ->  {"seconds": 0.0012}     its fastest call of a turn
{"drop": "a"}
{"version": null}  ->  {"version": "1.2"}
"""

from importlib.metadata import version

import numpy as np
from answer import answer
from turn import turn

# Batches of random ids that stand for data where none is given.
_NOISE = 3


def noise(ids, words):
    """Inputs like `ids`."""
    random = np.random.default_rng(0)
    drawn = [random.integers(0, words, ids.shape) for _ in range(_NOISE)]
    return [{"ids": each, "mask": np.ones_like(each)} for each in drawn]


def batches(path, size):
    """The sequences of a file, `size` at a time; the last ones are filled up with the first."""
    with np.load(path) as stored:
        ids, mask = stored["ids"], stored["mask"]
    made = []
    for start in range(0, len(ids), size):
        rows = np.arange(start, start + size) % len(ids)
        made.append({"ids": ids[rows], "mask": mask[rows]})
    return made


def serve(package, prepare):
    """Answer until stdin ends.

    Args:
        package: whose version is told.
        prepare: (arrays by name, ids [B, T], precision, threads, calibration: list of inputs) ->
            callable that gives the last hidden state [B, T, D] of inputs {"ids": ..., "mask": ...}.
    """
    runs = {}

    def load(case):
        with np.load(case["arrays"]) as stored:
            arrays = dict(stored)
        ids = np.load(case["ids"])
        inputs = {"ids": ids, "mask": np.ones_like(ids)}
        calibration = [inputs, *noise(ids, len(arrays["word"]))]
        if case.get("calibration"):
            calibration = batches(case["calibration"], len(ids))
        run = prepare(arrays, ids, case["precision"], case["threads"], calibration)
        np.save(case["y"], run(inputs))
        runs[case["name"]] = run, inputs, case["threads"]
        return {}

    def encode(case):
        run, inputs, _ = runs[case["name"]]
        size = len(inputs["ids"])
        with np.load(case["inputs"]) as stored:
            count = len(stored["ids"])
        parts = [run(batch).copy() for batch in batches(case["inputs"], size)]
        np.save(case["y"], np.concatenate(parts)[:count])
        return {}

    def timed(name):
        run, inputs, threads = runs[name]
        return {"seconds": turn(lambda: run(inputs), threads)}

    def drop(name):
        del runs[name]
        return {}

    answer(
        {
            "load": load,
            "encode": encode,
            "turn": timed,
            "drop": drop,
            "version": lambda _: {"version": version(package)},
        }
    )
