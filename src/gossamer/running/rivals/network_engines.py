# SPDX-License-Identifier: Apache-2.0
"""Networks from images to logits in other engines: each a process that holds graphs for a race."""

import contextlib
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.onnx.export import export_onnx
from gossamer.running.rivals.encoder_engines import TITLES
from gossamer.running.rivals.engine_process import SCRIPTS, EngineFailed, EngineProcess

Logits = npt.NDArray[np.float32]
NETWORK_PRECISIONS = ("fp32", "int8")
# Compiling and quantising a large network takes a while.
_PATIENCE_SECONDS = 600
# An engine that is no longer kept up, and the versions of the format that it reads.
_OLD, _IR, _OPSET = "deepsparse", 8, 13


class NetworkEngine:
    """One engine; a context.

    Args:
        name: onnxruntime, openvino or deepsparse.
        python: the interpreter of its environment, see `find_engine`.
        threads: of every graph in it.
    """

    def __init__(self, name: str, python: Path, threads: int) -> None:
        self.name, self.title, self._threads = name, TITLES[name], threads
        script = SCRIPTS / f"net_{name}.py"
        self._process = EngineProcess(self.title, python, script, threads, _PATIENCE_SECONDS)
        self._folder = Path(tempfile.mkdtemp())
        self.version = "?"

    def __enter__(self) -> "NetworkEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(
        self, name: str, graph: Path, x: torch.Tensor, calibration: torch.Tensor, precision: str
    ) -> Logits:
        """Compile an .onnx file under a name; the logits of x. EngineFailed if it cannot.

        Args:
            name: to ask for it by.
            graph: from `export_network`.
            x: images that it is timed with; all its batches have this shape.
            calibration: images that int8 is calibrated by, a whole number of batches.
            precision: one of NETWORK_PRECISIONS.
        """
        # Tools write beside the graph.
        own = self._folder / f"{name.replace(' ', '_')}.onnx"
        shutil.copy(graph, own)
        if self.name == _OLD:
            self._make_older(own)
        case = {"name": name, "model": str(own), "precision": precision, "threads": self._threads}
        logits = self._ask("load", case, x=x, calibration=calibration)
        self.version = self._process.ask("version", None)["version"]
        return logits

    def logits(self, name: str, x: torch.Tensor) -> Logits:
        """What a loaded network says of other images, a whole number of batches."""
        return self._ask("answer", {"name": name}, x=x)

    def turn(self, name: str) -> float:
        """Seconds of the fastest call of one turn; infinite if the engine fails in it."""
        try:
            return float(self._process.ask("turn", name)["seconds"])
        except EngineFailed:
            return math.inf

    def close(self) -> None:
        """End the process."""
        self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_older(self, graph: Path) -> None:
        import onnx

        model = onnx.load(graph)
        try:
            _lower_versions(model)
        except onnx.checker.ValidationError as error:
            reason = str(error).splitlines()[0]
            raise EngineFailed(f"{self.title}: the graph is too new for it ({reason})") from error
        onnx.save(model, graph)

    def _ask(self, question: str, case: dict[str, Any], **arrays: torch.Tensor) -> Logits:
        paths = {key: str(self._folder / f"{key}.npy") for key in (*arrays, "y")}
        for key, array in arrays.items():
            np.save(paths[key], array.numpy())
        self._process.ask(question, {**case, **paths})
        logits: Logits = np.load(paths["y"])
        return logits


def export_network(dense: nn.Module, x: torch.Tensor, path: Path) -> None:
    """Write a dense network for the engines; its input is `x`, of this shape.

    InputError says why it cannot be written.
    """
    # The exporter says which optional packages it does without.
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        try:
            export_onnx(_OneInput(dense), {"x": x}, path)
        except torch.onnx.OnnxExporterError as error:
            raise InputError(f"torch.onnx cannot write the network: {error}") from error


class _OneInput(nn.Module):
    """Its argument is called x, whatever the network calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)


def _lower_versions(model: Any) -> None:
    """Of a graph of convolutions: only means are written differently there."""
    import onnx

    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "ReduceMean" and len(node.input) == 2:
            axes = constants[node.input.pop()]
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("keepdims", 0))
            node.attribute.append(onnx.helper.make_attribute("axes", axes.tolist()))
    model.ir_version = _IR
    model.opset_import[0].version = _OPSET
    onnx.checker.check_model(model)


__all__ = ["NETWORK_PRECISIONS", "EngineFailed", "NetworkEngine", "export_network"]
