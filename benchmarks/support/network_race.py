# SPDX-License-Identifier: Apache-2.0
"""One pruned network in every engine, in turns: milliseconds, and the error against dense torch."""

import contextlib
import functools
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

import gossamer
from gossamer.ops.timing import race
from gossamer.running.bench import dense_copy
from gossamer.running.rivals import (
    NETWORK_PRECISIONS,
    EngineFailed,
    NetworkEngine,
    export_network,
)
from gossamer.running.rivals.engine_scripts.turn import turn
from support.options import progress

ENGINES = ("onnxruntime", "openvino", "deepsparse")


@dataclass
class Contender:
    """Something that turns images into logits.

    Attributes:
        engine: as people call it.
        precision: fp32 or int8.
        error: largest difference to dense torch fp32, over its largest value.
        watch: seconds of one turn.
        answer: the logits of other images.
    """

    engine: str
    precision: str
    error: float
    watch: object
    answer: object


class Contenders(contextlib.ExitStack):
    """All engines with one network at one batch size; a context.

    Args:
        model: pruned.
        x: a batch of images.
        calibration: images that scales of int8 are measured on, a whole number of batches.
        threads: of each engine.
        peers: the folder of their environments.
    """

    def __init__(self, model, x, calibration, threads, peers):
        super().__init__()
        self._dense = dense_copy(model)
        self._x, self._calibration, self._threads = x, calibration, threads
        with torch.inference_mode():
            self._expected = self._dense(x)
        self.found = [self._own("torch", "fp32", self._dense)]
        for precision in NETWORK_PRECISIONS:
            fast = gossamer.compile(model, example=calibration, precision=precision)
            self.found.append(self._own("gossamer", precision, fast))
        self._add_peers(Path(peers))

    def race(self, seconds):
        """Milliseconds of all, in turns."""
        best = race([c.watch for c in self.found], budget_seconds=seconds, min_rounds=3)
        return [us / 1e3 for us in best]

    def _own(self, engine, precision, model):
        x = self._x

        def run(images=x):
            with torch.inference_mode():
                return model(images)

        watch = functools.partial(turn, run, self._threads)
        return Contender(engine, precision, self._error(run()), watch, run)

    def _add_peers(self, folder):
        with tempfile.TemporaryDirectory() as place:
            graph = Path(place) / "net.onnx"
            export_network(self._dense, self._x, graph)
            for name in ENGINES:
                python = folder / name / "bin" / "python"
                if not python.exists():
                    progress(f"{name}: not installed; benchmarks/peers/setup.sh {name} {folder}")
                    continue
                engine = self.enter_context(NetworkEngine(name, python, self._threads))
                for precision in NETWORK_PRECISIONS:
                    self._add_peer(engine, graph, precision)

    def _add_peer(self, engine, graph, precision):
        try:
            y = engine.load(precision, graph, self._x, self._calibration, precision)
        except EngineFailed as failure:
            progress(f"{str(failure)[:200]}; left out")
            return
        self.found.append(
            Contender(
                engine.title,
                precision,
                self._error(torch.from_numpy(y)),
                lambda: engine.turn(precision),
                lambda images: torch.from_numpy(engine.logits(precision, images)),
            )
        )

    def _error(self, y):
        top = float(self._expected.abs().max())
        return float((y - self._expected).abs().max()) / top if top else math.nan
