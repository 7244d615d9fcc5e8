# SPDX-License-Identifier: Apache-2.0
"""Models in the process of an engine, several at a time, each under a name.

{"load": {"name": "a", "graph": "a.onnx", "inputs": "i.npz", "y": "y.npy", "precision": "fp32",
          "threads": 1}}           y.npy then holds what the model makes of the inputs;
                                   "arrays": "a.npz" instead of a graph has those of an encoder,
                                   "kind": "encoder" says that a graph is of one,
                                   "calibration": "c.npz" has inputs to quantise by
{"answer": {"name": "a", "inputs": "i.npz", "y": "y.npy"}}   the same for any number of rows
{"turn": "a"}  ->  {"seconds": 0.0012}     its fastest call of a turn
{"drop": "a"}
{"version": null}  ->  {"version": "1.2"}

Inputs are arrays by name: `x` of a network from images to logits, `ids` and `mask` of an encoder,
whose output is its last hidden state.
"""

import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from answer import answer
from turn import turn

# Batches of random ids that stand for data where none is given.
_NOISE = 3


def noise(ids, words):
    """Inputs of an encoder like `ids`."""
    random = np.random.default_rng(0)
    drawn = [random.integers(0, words, ids.shape) for _ in range(_NOISE)]
    return [{"ids": each, "mask": np.ones_like(each)} for each in drawn]


def arrays_in(path):
    """The arrays of a file by name."""
    with np.load(path) as stored:
        return dict(stored)


def num_rows(inputs):
    """Images or sequences in the inputs."""
    return len(next(iter(inputs.values())))


def batches(inputs, size):
    """The inputs, `size` rows at a time; the last batch is filled up with the first rows."""
    count = num_rows(inputs)
    parts = [np.arange(start, start + size) % count for start in range(0, count, size)]
    return [{name: array[rows] for name, array in inputs.items()} for rows in parts]


def serve(package, prepare):
    """Answer until stdin ends.

    Args:
        package: whose version is told.
        prepare: (path of an ONNX graph, "encoder" or "network", precision, threads, calibration: a
            list of inputs) -> callable that gives the graph's output for inputs of one batch.
    """
    held = {}

    def load(case):
        inputs = arrays_in(case["inputs"])
        calibration = [inputs]
        if case.get("calibration"):
            calibration = batches(arrays_in(case["calibration"]), num_rows(inputs))
        with tempfile.TemporaryDirectory() as folder:
            path, kind = case.get("graph"), case.get("kind", "network")
            if path is None:
                from encoder_graph import save_encoder  # it needs the package onnx

                path, kind = str(Path(folder) / "encoder.onnx"), "encoder"
                arrays = arrays_in(case["arrays"])
                save_encoder(arrays, inputs["ids"].shape, path)
                if not case.get("calibration"):
                    calibration += noise(inputs["ids"], len(arrays["word"]))
            run = prepare(path, kind, case["precision"], case["threads"], calibration)
        np.save(case["y"], run(inputs))
        held[case["name"]] = run, inputs, case["threads"]
        return {}

    def other_inputs(case):
        run, timed, _ = held[case["name"]]
        inputs = arrays_in(case["inputs"])
        parts = [run(batch).copy() for batch in batches(inputs, num_rows(timed))]
        np.save(case["y"], np.concatenate(parts)[: num_rows(inputs)])
        return {}

    def timed(name):
        run, inputs, threads = held[name]
        return {"seconds": turn(lambda: run(inputs), threads)}

    def drop(name):
        del held[name]
        return {}

    answer(
        {
            "load": load,
            "answer": other_inputs,
            "turn": timed,
            "drop": drop,
            "version": lambda _: {"version": version(package)},
        }
    )
