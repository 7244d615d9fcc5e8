# SPDX-License-Identifier: Apache-2.0
"""DeepSparse 1.8: fp32, or static int8 as QLinear operators.

It multiplies only this form in int8: pairs of QuantizeLinear and DequantizeLinear run slower than
fp32, and a dynamically quantised graph ends its process. Encoders have one scale per tensor.
"""

import logging
import os

os.environ["NM_DISABLE_ANALYTICS"] = "1"

from deepsparse import compile_model
from encoder_graph import weight_products
from serve import num_rows, serve
from static_int8 import quantised, with_shapes

logging.disable(logging.WARNING)


def prepare(path, kind, precision, threads, calibration):
    if precision == "int8" and kind == "encoder":
        path = quantised(path, calibration, qdq=False, nodes_to_quantize=weight_products(path))
    elif precision == "int8":
        path = quantised(with_shapes(path), calibration, qdq=False, per_channel=True)
    engine = compile_model(path, batch_size=num_rows(calibration[0]), num_cores=threads)
    return lambda inputs: engine.run(list(inputs.values()))[0]


serve("deepsparse", prepare)
