# SPDX-License-Identifier: Apache-2.0
"""Networks from images to logits in the process of an engine, several at a time, under names.

{"load": {"name": "a", "model": "a.onnx", "x": "x.npy", "calibration": "c.npy", "y": "y.npy",
          "precision": "fp32", "threads": 1}}    y.npy then holds the logits of x
{"answer": {"name": "a", "x": "x.npy", "y": "y.npy"}}    those of other images
{"turn": "a"}  ->  {"seconds": 0.0012}           its fastest call of a turn
{"drop": "a"}
{"version": null}  ->  {"version": "1.2"}

As `serve.py`, but for graphs; calibration [N, C, H, W] is what static quantisation looks at.
"""

from importlib.metadata import version

import numpy as np
from answer import answer
from turn import turn


def serve(package, prepare):
    """Answer until stdin ends.

    Args:
        package: whose version is told.
        prepare: (path of the graph, calibration, precision, batch, threads) -> callable that
            gives the logits of images [batch, C, H, W].
    """
    held = {}

    def load(case):
        x = np.load(case["x"])
        calibration = np.load(case["calibration"])
        run = prepare(case["model"], calibration, case["precision"], len(x), case["threads"])
        np.save(case["y"], run(x))
        held[case["name"]] = run, x, case["threads"]
        return {}

    def logits(case):
        run, x, _ = held[case["name"]]
        images = np.load(case["x"])
        parts = np.split(images, len(images) // len(x))
        np.save(case["y"], np.concatenate([run(part) for part in parts]))
        return {}

    def one_turn(name):
        run, x, threads = held[name]
        return {"seconds": turn(lambda: run(x), threads)}

    def drop(name):
        del held[name]
        return {}

    answer(
        {
            "load": load,
            "answer": logits,
            "turn": one_turn,
            "drop": drop,
            "version": lambda _: {"version": version(package)},
        }
    )
