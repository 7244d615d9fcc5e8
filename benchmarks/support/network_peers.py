# SPDX-License-Identifier: Apache-2.0
"""Networks in other engines: each engine a process that holds several graphs for a race."""

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np

from gossamer.run.encoder_engines import TITLES
from gossamer.run.engine_process import EngineFailed, EngineProcess

_SCRIPTS = Path(__file__).resolve().parent.parent / "peers"
_PATIENCE_SECONDS = 600
PRECISIONS = ("fp32", "int8")


class NetworkEngine:
    """One engine; a context.

    Args:
        name: onnxruntime, openvino or deepsparse.
        python: the interpreter of its environment.
        threads: of every graph in it.
    """

    def __init__(self, name, python, threads):
        self.name, self.title, self._threads = name, TITLES[name], threads
        script = _SCRIPTS / f"net_{name}.py"
        self._process = EngineProcess(self.title, python, script, threads, _PATIENCE_SECONDS)
        self._folder = Path(tempfile.mkdtemp())
        self.version = "?"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.close()
        shutil.rmtree(self._folder)

    def load(self, name, graph, x, calibration, precision):
        """Compile an .onnx file under a name; the logits of x. EngineFailed if it cannot."""
        # Tools write beside the graph.
        own = self._folder / f"{name.replace(' ', '_')}.onnx"
        shutil.copy(graph, own)
        case = {"name": name, "model": str(own), "precision": precision, "threads": self._threads}
        logits = self._ask("load", case, x=x, calibration=calibration)
        self.version = self._process.ask("version", None)["version"]
        return logits

    def logits(self, name, x):
        """What a loaded network says of other images, a whole number of batches."""
        return self._ask("answer", {"name": name}, x=x)

    def turn(self, name):
        """Seconds of the fastest call of one turn; infinite if the engine fails in it."""
        try:
            return self._process.ask("turn", name)["seconds"]
        except EngineFailed:
            return math.inf

    def _ask(self, question, case, **arrays):
        paths = {key: str(self._folder / f"{key}.npy") for key in (*arrays, "y")}
        for key, array in arrays.items():
            np.save(paths[key], array.numpy())
        self._process.ask(question, {**case, **paths})
        return np.load(paths["y"])
