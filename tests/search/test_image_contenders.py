# SPDX-License-Identifier: Apache-2.0
"""Networks in the processes of other engines; a script that runs the graph stands for an engine."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gossamer.data.files import ImageSet
from gossamer.running.rivals import (
    EngineFailed,
    NetworkEngine,
    engines,
    export_network,
)
from gossamer.search import Point, contenders
from gossamer.search.contenders import EngineContenders, counted_bytes, engine_points
from gossamer.search.workloads.images import image_workload

# The reference evaluator of the onnx package computes what an engine would.
ENGINE = """
from onnx.reference import ReferenceEvaluator
from serve import serve

def prepare(path, kind, precision, threads, calibration):
    assert kind == "network", kind
    if precision == "fp32":
        raise ValueError("not today")
    assert calibration[0]["x"].shape[1:] == (1, 8, 8)
    evaluator = ReferenceEvaluator(path)
    return lambda inputs: evaluator.run(None, inputs)[0]

serve("numpy", prepare)
"""


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    (tmp_path / "run_onnxruntime.py").write_text(ENGINE)
    monkeypatch.setattr(engines, "SCRIPTS", tmp_path)
    python = Path(sys.executable)
    found = {"onnxruntime": python}
    monkeypatch.setattr(contenders, "find_engine", lambda name, folder=None: found.get(name))


def _work():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3)
    ).eval()
    images = ImageSet("images", torch.rand(120, 1, 8, 8), torch.randint(0, 3, (120,)))
    return model, image_workload(model, images)


def test_an_engine_is_asked_for_images(scripts):
    model, work = _work()
    said = []
    with EngineContenders(threads=1, say=said.append) as engines:
        (found,) = engines.models(work)
        title, precision, network = found
        assert (title, precision) == ("ONNX Runtime", "int8")
        x = torch.rand(3, 1, 8, 8)
        with torch.inference_mode():
            assert torch.allclose(network(x), model(x), atol=1e-5)
        assert 0 < network.seconds() < 10
    assert said == ["ONNX Runtime: ValueError: not today"]


def test_it_stands_on_the_front(scripts):
    model, work = _work()
    quality = work.choosing.measure(model)
    dense = Point("dense", "fp32", quality, 0.0, 1.0, 1.0, 100)
    with EngineContenders(threads=1) as engines:
        (point,) = engine_points(work, dense, engines)
    assert (point.lost, point.quality) == (0, quality)
    assert not point.is_ours
    # One byte a weight, four a bias.
    assert point.size == counted_bytes(model, "int8") == 4 * 9 + 3 * 256 + 4 * 7


def test_an_engine_that_ended_says_so(scripts, tmp_path):
    model, work = _work()
    graph = tmp_path / "net.onnx"
    export_network(model, work.timed.arguments, graph)
    with NetworkEngine("onnxruntime", Path(sys.executable), 1) as engine:
        x = work.timed.arguments
        with pytest.raises(EngineFailed, match="not today"):
            engine.load("a", graph, x, torch.rand(64, 1, 8, 8), "fp32")
        logits = engine.load("b", graph, x, torch.rand(64, 1, 8, 8), "int8")
        assert np.allclose(logits, model(x).detach().numpy(), atol=1e-5)
        engine._process.close()
        assert engine.turn("b") == float("inf")


def test_a_network_that_cannot_be_written_is_left_out(scripts):
    class Branching(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :3] if float(x.sum()) > 0 else x.flatten(1)[:, 3:6]

    _, work = _work()
    said = []
    with EngineContenders(threads=1, say=said.append) as engines:
        assert list(engines.models(dataclasses.replace(work, model=Branching()))) == []
    assert said[0].startswith("other engines are not asked: torch.onnx cannot write the network")
