# SPDX-License-Identifier: Apache-2.0
"""Other engines, each a process in its own environment, asked for one turn at a time."""

import math
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from gossamer.running.rivals import EngineFailed
from gossamer.running.rivals.engines import EngineProcess

_SCRIPTS = Path(__file__).resolve().parent.parent / "peers"
NAMES = ("scipy", "deepsparse", "sparseprop", "onnxruntime")
TITLES = {
    "scipy": "scipy CSR",
    "deepsparse": "DeepSparse 1.8",
    "sparseprop": "SparseProp",
    "onnxruntime": "ORT dense int8",
}
_PATIENCE_SECONDS = 120


class Peer:
    """A running peer.

    Args:
        name: one of NAMES.
        python: the interpreter of its environment.
        threads: how many it may use.
    """

    def __init__(self, name, python, threads):
        self.name = name
        self.title = TITLES[name]
        self._threads = threads
        self._folder = tempfile.TemporaryDirectory()
        script = _SCRIPTS / f"run_{name}.py"
        self._process = EngineProcess(self.title, python, script, threads, _PATIENCE_SECONDS)

    def load(self, weight_RK, x_TK, task="forward"):
        """Prepare a case; gives y as the peer computes it."""
        paths = {
            name: str(Path(self._folder.name) / f"{name}.npy") for name in ("weight", "x", "y")
        }
        np.save(paths["weight"], weight_RK.numpy())
        np.save(paths["x"], x_TK.numpy())
        self._process.ask("load", {**paths, "task": task, "threads": self._threads})
        return np.load(paths["y"])

    def turn(self):
        """Seconds of the fastest call of one turn; infinite if the peer fails in it."""
        try:
            return self._process.ask("turn", None)["seconds"]
        except EngineFailed as failure:
            print(failure, file=sys.stderr)
            return math.inf

    def close(self):
        """End the process."""
        self._process.close()
        self._folder.cleanup()


class Peers(ExitStack):
    """The peers that are installed, as a context; says which are missing.

    Args:
        folder: where `peers/setup.sh` made their environments.
        threads: of each peer.
        names: which ones are wanted.
    """

    def __init__(self, folder, threads, names=NAMES):
        super().__init__()
        self._running = []
        for name in names:
            python = Path(folder) / name / "bin" / "python"
            if not python.exists():
                print(
                    f"{TITLES[name]}: not installed; benchmarks/peers/setup.sh {name} {folder}",
                    file=sys.stderr,
                )
                continue
            peer = Peer(name, python, threads)
            self.callback(peer.close)
            self._running.append(peer)

    def load(self, weight_RK, x_TK, task="forward"):
        """(peer, its y) of the peers that take the case; one that fails once is left out."""
        ready = []
        for peer in list(self._running):
            try:
                ready.append((peer, peer.load(weight_RK, x_TK, task)))
            except EngineFailed as failure:
                print(f"{failure}; left out", file=sys.stderr)
                self._running.remove(peer)
        return ready
