# SPDX-License-Identifier: Apache-2.0
"""Other engines: where each is found, and one that holds encoders or networks for a race.

An engine is a process in its own environment, asked for one thing at a time.
"""

import contextlib
import importlib.util
import json
import math
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gossamer import settings
from gossamer.errors import InputError
from gossamer.io.onnx import export_onnx
from gossamer.running.encoder.arrays import Arrays

SCRIPTS = Path(__file__).resolve().parent / "engine_scripts"
_MODULES = SCRIPTS  # that scripts import, wherever these are
_END_SECONDS = 10


class EngineFailed(Exception):
    """An engine refused a case, died or did not answer."""


class EngineProcess:
    """A running script of an engine; see `engine_scripts/answer.py` for the other side.

    Args:
        title: how messages call it.
        python: the interpreter of its environment.
        script: what it runs; it finds the modules of `engine_scripts`.
        threads: how many it may use.
        patience_seconds: for one answer.
    """

    def __init__(
        self, title: str, python: Path, script: Path, threads: int, patience_seconds: float
    ) -> None:
        self.title = title
        self._patience_seconds = patience_seconds
        self._process = subprocess.Popen(  # noqa: S603  (our script, the user's environment)
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(_MODULES)},
        )
        self._to: Any = self._process.stdin
        self._back: Any = self._process.stdout

    def ask(self, question: str, value: Any) -> dict[str, Any]:
        """The answer; EngineFailed says what went wrong."""
        asked, line = json.dumps({question: value}) + "\n", ""
        with contextlib.suppress(BrokenPipeError, ValueError):  # the latter where we closed a pipe
            self._to.write(asked)
            self._to.flush()
            if not select.select([self._back], [], [], self._patience_seconds)[0]:
                self._process.kill()
                raise EngineFailed(f"{self.title}: no answer within {self._patience_seconds:.0f} s")
            line = self._back.readline()
        if not line:
            raise EngineFailed(f"{self.title}: its process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{self.title}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        for pipe in (self._to, self._back):
            with contextlib.suppress(BrokenPipeError):  # a question it did not live to read
                pipe.close()
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# The precisions that each can compute an encoder in.
PRECISIONS = {
    "onnxruntime": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "deepsparse": ("fp32", "int8"),
}
NETWORK_PRECISIONS = ("fp32", "int8")
TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "deepsparse": "DeepSparse"}
# An engine that is no longer kept up, and the versions of the format that it reads.
_OLD, _IR, _OPSET = "deepsparse", 8, 13

Floats = npt.NDArray[np.float32]
Tensors = Mapping[str, torch.Tensor]


def find_engine(name: str, folder: Path | None = None) -> Path | None:
    """The interpreter to run an engine with: `folder`/NAME, or this one if it has what is needed.

    Args:
        name: one of PRECISIONS.
        folder: environments by name; None = GOSSAMER_PEERS.
    """
    python = (folder or settings.peers_dir()) / name / "bin" / "python"
    if python.exists():
        return python
    # Besides the engine itself, what builds the graph that it reads.
    here = all(importlib.util.find_spec(package) for package in (name, "onnx"))
    return Path(sys.executable) if here else None


class _Engine(contextlib.ExitStack):
    """One engine in its process; a context.

    Args:
        name: one of PRECISIONS.
        python: from `find_engine`.
        threads: of every model in it.
    """

    # For one answer: compiling and quantising a large model takes a while.
    patience_seconds: ClassVar[float]

    def __init__(self, name: str, python: Path, threads: int) -> None:
        super().__init__()
        self.name, self.title, self._threads = name, TITLES[name], threads
        script = SCRIPTS / f"run_{name}.py"
        self._process = EngineProcess(self.title, python, script, threads, self.patience_seconds)
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._folder = Path(self.enter_context(folder))
        self.callback(self._process.close)
        self.version = "?"

    def turn(self, name: str) -> float:
        """Seconds of the fastest call of one turn of the model under this name."""
        return float(self._process.ask("turn", name)["seconds"])

    def drop(self, name: str) -> None:
        """Forget a model."""
        self._process.ask("drop", name)

    def _load(
        self, name: str, precision: str, inputs: Tensors, calibration: Tensors | None, **model: str
    ) -> Floats:
        case = {"name": name, "precision": precision, "threads": self._threads, **model}
        if calibration is not None:
            case["calibration"] = self._file("calibration", calibration)
        output = self._ask("load", case, inputs)
        self.version = self._process.ask("version", None)["version"]
        return output

    def _ask(self, question: str, case: Mapping[str, Any], inputs: Tensors) -> Floats:
        answer = str(self._folder / "y.npy")
        self._process.ask(question, {**case, "inputs": self._file("inputs", inputs), "y": answer})
        output: Floats = np.load(answer)
        return output

    def _file(self, name: str, arrays: Tensors | Arrays) -> str:
        path = self._folder / f"{name}.npz"
        np.savez(path, **arrays)
        return str(path)


class EncoderEngine(_Engine):
    """One engine that holds encoders, in its own process; a context."""

    patience_seconds = 1800

    def load(
        self,
        name: str,
        arrays: Arrays,
        ids_BT: torch.Tensor,
        precision: str,
        calibration: Tensors | None = None,
    ) -> Floats:
        """Compile an encoder under a name; gives the last hidden state [B, T, D].

        Args:
            name: to ask for it by.
            arrays: the encoder.
            ids_BT: what it is timed with; all its inputs have this shape.
            precision: one that PRECISIONS says.
            calibration: ids and mask [N, T] that int8 is calibrated by; None: random ids.
        """
        inputs = {"ids": ids_BT, "mask": torch.ones_like(ids_BT)}
        stored = self._file("arrays", arrays)
        hidden = self._load(name, precision, inputs, calibration, arrays=stored)
        Path(stored).unlink()
        return hidden

    def encode(self, name: str, ids_NT: torch.Tensor, mask_NT: torch.Tensor) -> Floats:
        """The last hidden states [N, T, D] of any number of sequences of the loaded length."""
        return self._ask("answer", {"name": name}, {"ids": ids_NT, "mask": mask_NT})


class NetworkEngine(_Engine):
    """One engine that holds networks from images to logits, in its own process; a context."""

    patience_seconds = 600

    def load(
        self,
        name: str,
        graph: Path,
        x: torch.Tensor,
        calibration: torch.Tensor,
        precision: str,
        *,
        kind: str = "network",
    ) -> Floats:
        """Compile an .onnx file under a name; the logits of x. EngineFailed if it cannot.

        Args:
            name: to ask for it by.
            graph: from `export_network`.
            x: images that it is timed with; all its batches have this shape.
            calibration: images that int8 is calibrated by, a whole number of batches.
            precision: one of NETWORK_PRECISIONS.
            kind: "encoder" for one, which engines quantise as such.
        """
        # Tools write beside the graph.
        own = self._folder / f"{name.replace(' ', '_')}.onnx"
        shutil.copy(graph, own)
        if self.name == _OLD:
            self._make_older(own)
        return self._load(name, precision, {"x": x}, {"x": calibration}, graph=str(own), kind=kind)

    def logits(self, name: str, x: torch.Tensor) -> Floats:
        """What a loaded network says of other images, a whole number of batches."""
        return self._ask("answer", {"name": name}, {"x": x})

    def turn(self, name: str) -> float:
        """Seconds of the fastest call of one turn; infinite if the engine fails in it."""
        try:
            return super().turn(name)
        except EngineFailed:
            return math.inf

    def _make_older(self, graph: Path) -> None:
        """Of a graph of convolutions: only means are written differently there."""
        import onnx

        model: Any = onnx.load(graph)
        constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "ReduceMean" and len(node.input) == 2:
                axes = constants[node.input.pop()]
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("keepdims", 0))
                node.attribute.append(onnx.helper.make_attribute("axes", axes.tolist()))
        model.ir_version = _IR
        model.opset_import[0].version = _OPSET
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            reason = str(error).splitlines()[0]
            raise EngineFailed(f"{self.title}: the graph is too new for it ({reason})") from error
        onnx.save(model, graph)


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
