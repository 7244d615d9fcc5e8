# SPDX-License-Identifier: Apache-2.0
"""Other engines, each a process in its own environment, asked for one turn at a time."""

import json
import math
import os
import select
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

_SCRIPTS = Path(__file__).resolve().parent.parent / "peers"
NAMES = ("scipy", "deepsparse", "sparseprop", "onnxruntime")
TITLES = {
    "scipy": "scipy CSR",
    "deepsparse": "DeepSparse 1.8",
    "sparseprop": "SparseProp",
    "onnxruntime": "ORT dense int8",
}
_PATIENCE_SECONDS = 120


class PeerFailed(Exception):
    """A peer refused a case, died or did not answer."""


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
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(  # noqa: S603  (our script, the user's environment)
            [str(python), str(_SCRIPTS / f"run_{name}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def load(self, weight_RK, x_TK, task="forward"):
        """Prepare a case; gives y as the peer computes it."""
        paths = {
            name: str(Path(self._folder.name) / f"{name}.npy") for name in ("weight", "x", "y")
        }
        np.save(paths["weight"], weight_RK.numpy())
        np.save(paths["x"], x_TK.numpy())
        self._ask({"load": {**paths, "task": task, "threads": self._threads}})
        return np.load(paths["y"])

    def turn(self):
        """Seconds of the fastest call of one turn; infinite if the peer fails in it."""
        try:
            return self._ask({"turn": True})["seconds"]
        except PeerFailed as failure:
            print(failure, file=sys.stderr)
            return math.inf

    def close(self):
        """End the process."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def _ask(self, question):
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(f"{self.title}: its process has ended") from error
        if not select.select([self._process.stdout], [], [], _PATIENCE_SECONDS)[0]:
            self._process.kill()
            raise PeerFailed(f"{self.title}: no answer within {_PATIENCE_SECONDS} s")
        answer = json.loads(self._process.stdout.readline() or '{"error": "its process has ended"}')
        if "error" in answer:
            raise PeerFailed(f"{self.title}: {answer['error']}")
        return answer


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
            except PeerFailed as failure:
                print(f"{failure}; left out", file=sys.stderr)
                self._running.remove(peer)
        return ready
