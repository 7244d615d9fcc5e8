# SPDX-License-Identifier: Apache-2.0
"""DeepSparse 1.8: fp32, or static int8 as QLinear operators, the form it multiplies in int8."""

import logging
import os

os.environ["NM_DISABLE_ANALYTICS"] = "1"

from deepsparse import compile_model
from networks import serve
from static_int8 import quantised

logging.disable(logging.WARNING)


def prepare(path, calibration, precision, batch, threads):
    if precision == "int8":
        path = quantised(path, calibration, batch, qdq=False)
    engine = compile_model(path, batch_size=batch, num_cores=threads)
    return lambda x: engine.run([x])[0]


serve("deepsparse", prepare)
