# SPDX-License-Identifier: Apache-2.0
"""Encoders in other engines: where an engine is found, and one that holds encoders for a race."""

import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gossamer import settings
from gossamer.running.encoder.arrays import Arrays
from gossamer.running.rivals.engine_process import SCRIPTS, EngineFailed, EngineProcess

# The precisions that each can compute an encoder in.
PRECISIONS = {
    "onnxruntime": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "deepsparse": ("fp32", "int8"),
}
TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "deepsparse": "DeepSparse"}
# Besides the engine itself, to build the graph it reads.
_ALSO_NEEDED = {"onnxruntime": ("onnx",), "openvino": ("onnx",), "deepsparse": ("onnx",)}
# Compiling and quantising a large encoder takes a while.
_PATIENCE_SECONDS = 1800


def find_engine(name: str, folder: Path | None = None) -> Path | None:
    """The interpreter to run an engine with: `folder`/NAME, or this one if it has what is needed.

    Args:
        name: one of PRECISIONS.
        folder: environments by name; None = GOSSAMER_PEERS.
    """
    python = (folder or settings.peers_dir()) / name / "bin" / "python"
    if python.exists():
        return python
    needed = (name, *_ALSO_NEEDED[name])
    here = all(importlib.util.find_spec(package) for package in needed)
    return Path(sys.executable) if here else None


class EncoderEngine:
    """One engine in its process; a context.

    Args:
        name: one of PRECISIONS.
        python: from `find_engine`.
        threads: of every encoder in it.
    """

    def __init__(self, name: str, python: Path, threads: int) -> None:
        self.name, self.title = name, TITLES[name]
        self._threads = threads
        script = SCRIPTS / f"encode_{name}.py"
        self._process = EngineProcess(self.title, python, script, threads, _PATIENCE_SECONDS)
        self._folder = tempfile.TemporaryDirectory()
        self.version = "?"

    def __enter__(self) -> "EncoderEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(
        self,
        name: str,
        arrays: Arrays,
        ids_BT: torch.Tensor,
        precision: str,
        calibration: Mapping[str, torch.Tensor] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Compile an encoder under a name; gives the last hidden state [B, T, D].

        Args:
            name: to ask for it by.
            arrays: the encoder.
            ids_BT: what it is timed with; all its inputs have this shape.
            precision: one that PRECISIONS says.
            calibration: ids and mask [N, T] that int8 is calibrated by; None: random ids.
        """
        folder = Path(self._folder.name)
        paths = {key: str(folder / f"{key}.npy") for key in ("ids", "y")}
        paths["arrays"] = str(folder / "arrays.npz")
        np.savez(paths["arrays"], **arrays)  # type: ignore[arg-type]  # numpy types its options
        np.save(paths["ids"], ids_BT.numpy())
        case = {**paths, "name": name, "precision": precision, "threads": self._threads}
        if calibration is not None:
            case["calibration"] = self._file(calibration)
        self._process.ask("load", case)
        Path(paths["arrays"]).unlink()
        self.version = self._process.ask("version", None)["version"]
        hidden: npt.NDArray[np.float32] = np.load(paths["y"])
        return hidden

    def encode(
        self, name: str, ids_NT: torch.Tensor, mask_NT: torch.Tensor
    ) -> npt.NDArray[np.float32]:
        """The last hidden states [N, T, D] of any number of sequences of the loaded length."""
        answer = Path(self._folder.name) / "y.npy"
        inputs = self._file({"ids": ids_NT, "mask": mask_NT})
        self._process.ask("encode", {"name": name, "inputs": inputs, "y": str(answer)})
        hidden: npt.NDArray[np.float32] = np.load(answer)
        return hidden

    def _file(self, tensors: Mapping[str, torch.Tensor]) -> str:
        path = Path(self._folder.name) / "inputs.npz"
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})  # type: ignore[arg-type]
        return str(path)

    def turn(self, name: str) -> float:
        """Seconds of the fastest call of one turn of the encoder under this name."""
        return float(self._process.ask("turn", name)["seconds"])

    def drop(self, name: str) -> None:
        """Forget an encoder."""
        self._process.ask("drop", name)

    def close(self) -> None:
        """End the process."""
        self._process.close()
        self._folder.cleanup()


__all__ = ["PRECISIONS", "TITLES", "EncoderEngine", "EngineFailed", "find_engine"]
