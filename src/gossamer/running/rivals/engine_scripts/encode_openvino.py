# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: fp32, bf16 where it is asked for, or static int8 made by NNCF as it is by default."""

import tempfile
from pathlib import Path

import openvino
from encoder_graph import save_encoder
from encoders import serve

_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


def prepare(arrays, ids, precision, threads, calibration):
    core = openvino.Core()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "encoder.onnx")
        save_encoder(arrays, ids.shape, path)
        model = core.read_model(path)
        if precision == "int8":
            model = _quantised(model, calibration)
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
    return lambda inputs: request.infer(inputs)[compiled.output(0)]


def _quantised(model, calibration):
    import nncf  # only where int8 is asked for: it is slow to load

    return nncf.quantize(
        model,
        nncf.Dataset(calibration),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(calibration),
    )


serve("openvino", prepare)
