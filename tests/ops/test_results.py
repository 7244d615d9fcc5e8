# SPDX-License-Identifier: Apache-2.0
"""Large results: memory that was freed stays with the process, unless that is switched off."""

import os
import subprocess
import sys

import pytest

from gossamer.errors import InputError
from gossamer.settings import keeps_memory

# Pages that come anew when the same large result is made and dropped ten times.
SCRIPT = """
import resource, torch
from gossamer.ops.results import new_result
like = torch.zeros(1)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
new_result(like, 4096, 2560).fill_(1.0)
before = faults()
for _ in range(10):
    new_result(like, 4096, 2560).fill_(1.0)
print(faults() - before)
"""
PAGES = 10 * 4096 * 2560 * 4 // 4096


def new_pages(setting):
    environment = {**os.environ, "GOSSAMER_KEEP_MEMORY": setting, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc of glibc")
def test_memory_of_large_results_is_used_again():
    assert new_pages("on") < PAGES // 4


def test_the_setting_has_two_values(monkeypatch):
    monkeypatch.setenv("GOSSAMER_KEEP_MEMORY", "maybe")
    with pytest.raises(InputError, match="GOSSAMER_KEEP_MEMORY"):
        keeps_memory()
