# SPDX-License-Identifier: Apache-2.0
"""DeepSparse 1.8: one MatMul, compiled for the number of cores."""

import os
import tempfile
from pathlib import Path

os.environ["NM_DISABLE_ANALYTICS"] = "1"

from deepsparse import compile_model
from onnx_graph import save_matmul
from serve import forward_only, serve


def prepare(weight, x, task, threads):
    forward_only(task)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "matmul.onnx")
        save_matmul(weight, len(x), path)
        engine = compile_model(path, batch_size=len(x), num_cores=threads)
    return lambda: engine.run([x])[0]


serve(prepare)
