# SPDX-License-Identifier: Apache-2.0
"""Encoders in the process of an engine, several at a time, each under a name.

{"load": {"name": "a", "arrays": "a.npz", "ids": "ids.npy", "y": "y.npy", "precision": "fp32",
          "threads": 1}}           y.npy then holds the last hidden state, for comparison
{"turn": "a"}  ->  {"seconds": 0.0012}     its fastest call of a turn
{"drop": "a"}
{"version": null}  ->  {"version": "1.2"}
"""

from importlib.metadata import version

import numpy as np
from answer import answer
from turn import turn


def serve(package, prepare):
    """Answer until stdin ends.

    Args:
        package: whose version is told.
        prepare: (arrays by name, ids [B, T], precision, threads) -> callable without arguments
            that gives the last hidden state [B, T, D].
    """
    runs = {}

    def load(case):
        with np.load(case["arrays"]) as stored:
            arrays = dict(stored)
        run = prepare(arrays, np.load(case["ids"]), case["precision"], case["threads"])
        np.save(case["y"], run())
        runs[case["name"]] = run, case["threads"]
        return {}

    def drop(name):
        del runs[name]
        return {}

    answer(
        {
            "load": load,
            "turn": lambda name: {"seconds": turn(*runs[name])},
            "drop": drop,
            "version": lambda _: {"version": version(package)},
        }
    )
