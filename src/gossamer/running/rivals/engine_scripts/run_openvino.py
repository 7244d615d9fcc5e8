# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: fp32, bf16 where it is asked for, or static int8 made by NNCF as it is by default."""

import openvino
from serve import serve


def prepare(path, kind, precision, threads, calibration):
    core = openvino.Core()
    model = core.read_model(path)
    if precision == "int8":
        import nncf  # only where int8 is asked for: it is slow to load

        model = nncf.quantize(
            model,
            nncf.Dataset(calibration),
            model_type=nncf.ModelType.TRANSFORMER if kind == "encoder" else None,
            subset_size=len(calibration),
        )
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    request = compiled.create_infer_request()
    return lambda inputs: request.infer(inputs)[compiled.output(0)]


serve("openvino", prepare)
