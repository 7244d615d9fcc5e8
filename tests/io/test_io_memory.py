# SPDX-License-Identifier: Apache-2.0
"""Saving needs one shard of extra memory, loading little more than the model itself."""

import json
import subprocess
import sys

# Not getrusage: its maximum survives exec, so it would start at what the parent process had.
SCRIPT = """
import json, pathlib, sys
import torch
from torch import nn
from gossamer.io import load, save
from gossamer.io.artifact import writer
from gossamer.nn import Linear
from gossamer.patterns import Unstructured

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

torch.set_num_threads(1)
writer.SHARD_BYTES = 8 * 2**20
small = nn.Sequential(nn.Linear(8, 8))
save(small, sys.argv[1] + "/warm")
load(sys.argv[1] + "/warm")
layers = []
for number in range(8):
    linear = nn.Linear(2048, 2048, bias=False)
    layers.append(Linear.from_dense(linear, torch.rand(2048, 2048) < 0.9))
model = nn.Sequential(*layers)
before = peak()
save(model, sys.argv[1] + "/a")
saved = peak()
del model, layers, linear
load(sys.argv[1] + "/a")
print(json.dumps({"save": saved - before, "load": peak() - saved}))
"""


def test_extra_memory_of_saving_and_loading_is_small(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, timeout=200, check=True
    )
    growth = json.loads(run.stdout)
    files = list((tmp_path / "a").glob("*.safetensors"))
    size_mb = sum(file.stat().st_size for file in files) / 2**20
    assert size_mb > 115
    assert len(files) == 8
    # 8 MB shards hold one layer each: 15 MB packed. Unpacking a mask for checks takes a few more.
    assert growth["save"] < 60
    assert growth["load"] < 60
