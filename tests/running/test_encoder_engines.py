# SPDX-License-Identifier: Apache-2.0
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_models import tiny_encoder

from gossamer import settings
from gossamer.ops.kernels import available_kernels
from gossamer.running.bench import EncoderTime, RaceEntry, model_run, race_encoders
from gossamer.running.bench.encoder import relative_error
from gossamer.running.encoder.arrays import encoder_arrays, find_base
from gossamer.running.rivals import (
    PRECISIONS,
    EncoderEngine,
    EngineFailed,
    engines,
    find_engine,
)

WIDER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
IDS = torch.randint(3, 50, (2, 5), generator=torch.Generator().manual_seed(0))
# Sums of word vectors stand for an encoder; it breaks in three ways, one per precision.
ENGINE = """
import sys
import onnx
from serve import serve

def prepare(path, kind, precision, threads, calibration):
    print("a banner")
    assert kind == "encoder", kind
    word = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    if precision == "refused":
        raise ValueError("unknown precision")
    if precision == "dies":
        sys.exit(3)
    calls = []
    def run(inputs):
        calls.append(1)
        if precision == "dies later" and len(calls) > 1:
            sys.exit(4)
        return word[inputs["ids"]] * threads * inputs["mask"][..., None]
    return run

serve("numpy", prepare)
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """One engine, run by this interpreter."""
    (tmp_path / "run_onnxruntime.py").write_text(ENGINE)
    monkeypatch.setattr(engines, "SCRIPTS", tmp_path)
    with EncoderEngine("onnxruntime", Path(sys.executable), threads=3) as running:
        yield running


@pytest.fixture(scope="module")
def arrays():
    return encoder_arrays(*find_base(tiny_encoder()), IDS.shape[1])


def test_an_engine_computes_is_timed_and_forgets(engine, arrays):
    expected = arrays["word"][IDS.numpy()] * 3
    np.testing.assert_array_equal(engine.load("a", arrays, IDS, "fp32"), expected)
    assert engine.version == np.__version__
    assert 0 <= engine.turn("a") < 1
    engine.drop("a")
    with pytest.raises(EngineFailed, match="ONNX Runtime: KeyError"):
        engine.turn("a")


def test_any_number_of_sequences_with_padding(engine, arrays):
    engine.load("a", arrays, IDS, "fp32", calibration={"ids": IDS, "mask": torch.ones_like(IDS)})
    ids = torch.randint(3, 50, (5, 5))
    mask = (torch.arange(5) < torch.tensor([5, 1, 3, 2, 4])[:, None]).long()
    hidden = engine.encode("a", ids, mask)
    expected = arrays["word"][ids.numpy()] * 3 * mask.numpy()[..., None]
    np.testing.assert_allclose(hidden, expected)


def test_a_refusal_leaves_the_engine_alive(engine, arrays):
    with pytest.raises(EngineFailed, match="ValueError: unknown precision"):
        engine.load("a", arrays, IDS, "refused")
    engine.load("b", arrays, IDS, "fp32")


def test_a_death_is_told_and_not_waited_for(engine, arrays):
    with pytest.raises(EngineFailed, match="its process has ended"):
        engine.load("a", arrays, IDS, "dies")
    with pytest.raises(EngineFailed, match="its process has ended"):
        engine.turn("a")


def test_who_dies_in_a_race_has_no_time(engine, arrays):
    expected = arrays["word"][IDS.numpy()] * 3
    entry = RaceEntry.of_engine(engine, ("dies later", 0.0), arrays, IDS, expected)
    model = tiny_encoder()
    stock = RaceEntry.of_model(("torch", "fp32", 0.0), model, IDS, model_run(model, IDS)().numpy())
    dead, alive = race_encoders([entry, stock], 0.0, 1)
    assert dead.ms == math.inf
    assert alive == EncoderTime("torch", "fp32", 0.0, 0.0, alive.ms)
    assert 0 < alive.ms < 1000


def test_error_is_relative_to_the_largest_value():
    assert relative_error(np.float32([1, -4]), np.float32([1.5, -5])) == pytest.approx(0.2)


def test_an_environment_goes_before_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    assert find_engine("openvino", tmp_path) is None
    python = tmp_path / "openvino" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_engine("openvino", tmp_path) == python
    monkeypatch.setenv("GOSSAMER_PEERS", str(tmp_path))
    assert find_engine("openvino") == python
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name)
    assert find_engine("deepsparse") == Path(sys.executable)


# At 24 features and without AVX-512; found 2026-11-17.
WRONG_WITH_AVX2 = {
    "deepsparse": "DeepSparse 1.8, fp32, half-empty layers: 0.66 off, at 32 features 2e-7",
    "openvino": "OpenVINO 2026.4 with NNCF 3.4, int8: 0.207 off, at 32 features 0.17",
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [24, 32])
@pytest.mark.parametrize("name", PRECISIONS)
def test_real_engines_agree_with_torch(name, width, request):
    python = find_engine(name, settings.peers_dir())
    if python is None:
        pytest.skip(f"{name} is not installed: benchmarks/peers/setup.sh")
    if width == 24 and name in WRONG_WITH_AVX2 and "avx512" not in available_kernels():
        request.applymarker(pytest.mark.xfail(reason=WRONG_WITH_AVX2[name], strict=True))
    model = tiny_encoder() if width == 24 else tiny_encoder(**WIDER)
    arrays = encoder_arrays(*find_base(model), IDS.shape[1])
    expected = model_run(model, IDS)().numpy()
    with EncoderEngine(name, python, threads=1) as running:
        for precision, allowed in (("fp32", 1e-4), ("int8", 0.2)):
            found = running.load(precision, arrays, IDS, precision)
            assert relative_error(found, expected) < allowed
