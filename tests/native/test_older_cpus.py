# SPDX-License-Identifier: Apache-2.0
"""The native module on emulated CPUs of other years: it loads, and runs what they can."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.ops import _native

EMULATOR = "qemu-x86_64"
# The native module alone: torch has needs of its own.
CODE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_native", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(*module.available_kernels())
"""


@pytest.mark.skipif(
    shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is not installed (Debian: qemu-user)"
)
@pytest.mark.parametrize(
    ("cpu", "kernels"), [("Nehalem", ["reference"]), ("Haswell", ["avx2", "reference"])]
)
def test_a_cpu_gets_the_kernels_that_it_can_run(cpu, kernels):
    module = getattr(_native, "__file__", None)
    if module is None:
        pytest.skip("this install has no native module")
    ran = subprocess.run(
        [EMULATOR, "-cpu", cpu, sys.executable, "-c", CODE, Path(module)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == kernels
