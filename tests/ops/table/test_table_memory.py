# SPDX-License-Identifier: Apache-2.0
"""A training step of a large table needs memory for its batch, not for a second table."""

import subprocess
import sys

import pytest

STEPS = """
import resource, sys, torch
from torch import nn
import gossamer
from gossamer.training.optim.tables import TableAdagrad

rows, fused = int(sys.argv[1]), sys.argv[2] == "fused"
torch.set_num_threads(1)

def trained(rows):
    weight = torch.empty(rows, 64).fill_(0.01)
    stock = nn.EmbeddingBag(rows, 64, mode="sum", _weight=weight)
    table = gossamer.nn.EmbeddingBag.from_dense(stock, bits=4, period=2)
    return rows, table, TableAdagrad([table.weight], fused=fused)

def steps(rows, table, optimizer):
    for _ in range(5):  # exact passes over the table included
        table(torch.randint(0, rows, (512, 10))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

steps(*trained(5000))  # the libraries and threads that first steps bring are not the table's
large = trained(rows)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts anew
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
before = peak()
steps(*large)
print((peak() - before) / (rows * 64 * 4))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("rows", [10**6, 10**7])
@pytest.mark.parametrize("mode", ["fused", "unfused"])
def test_a_step_grows_by_less_than_a_twentieth_of_the_table(rows, mode):
    run = [sys.executable, "-c", STEPS, str(rows), mode]
    grown = float(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert grown < 0.05
