# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: fp32, bf16 where it is asked for, or static int8 made by NNCF as it is by default."""

import tempfile
from pathlib import Path

import numpy as np
import openvino
from encoder_graph import save_encoder
from encoders import serve

_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}
_CALIBRATION_BATCHES = 4


def prepare(arrays, ids, precision, threads):
    core = openvino.Core()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "encoder.onnx")
        save_encoder(arrays, ids.shape, path)
        model = core.read_model(path)
        if precision == "int8":
            model = _quantised(model, ids, len(arrays["word"]))
        compiled = core.compile_model(
            model,
            "CPU",
            {
                "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": _HINTS[precision],
                "PERFORMANCE_HINT": "LATENCY",
            },
        )
    request = compiled.create_infer_request()
    inputs = {"ids": ids, "mask": np.ones_like(ids)}
    return lambda: request.infer(inputs)[compiled.output(0)]


def _quantised(model, ids, words):
    import nncf  # only where int8 is asked for: it is slow to load

    random = np.random.default_rng(0)
    batches = [
        ids,
        *(random.integers(0, words, ids.shape) for _ in range(_CALIBRATION_BATCHES - 1)),
    ]
    inputs = [{"ids": batch, "mask": np.ones_like(ids)} for batch in batches]
    return nncf.quantize(
        model,
        nncf.Dataset(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=_CALIBRATION_BATCHES,
    )


serve("openvino", prepare)
