# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: fp32, or static int8 made by NNCF as it is by default."""

import openvino
from networks import serve


def prepare(path, calibration, precision, batch, threads):
    core = openvino.Core()
    model = core.read_model(path)
    if precision == "int8":
        import nncf  # only where int8 is asked for: it is slow to load

        parts = range(0, len(calibration) - batch + 1, batch)
        inputs = [calibration[i : i + batch] for i in parts]
        model = nncf.quantize(model, nncf.Dataset(inputs), subset_size=len(inputs))
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    request = compiled.create_infer_request()
    return lambda x: request.infer([x])[compiled.output(0)]


serve("openvino", prepare)
