# SPDX-License-Identifier: Apache-2.0
"""Runs native/tests/check_kernels.cpp: kernels without Python, under sanitizers and emulated.

Minutes of compiling: `make native-test` runs them, and so does CI.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "native" / "tests" / "build_check.sh"
CXX = os.environ.get("CXX", "g++")


def _can_build(source: str, *flags: str, cxx: str = CXX) -> bool:
    """Whether the compiler is there and builds `source` with `flags`."""
    if shutil.which(cxx) is None:
        return False
    command = [cxx, "-x", "c++", "-", *flags, "-o", os.devnull]
    return subprocess.run(command, input=source.encode(), capture_output=True).returncode == 0


def _check(
    mode: str,
    where: Path,
    cxx: str = CXX,
    runner: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
) -> list[str]:
    """The lines check_kernels prints, built in `mode`; fails with its output."""
    env = {**os.environ, "CXX": cxx}
    built = subprocess.run([BUILD, mode, where], capture_output=True, text=True, env=env)
    assert built.returncode == 0, built.stderr
    command = [*runner, where / "check_kernels", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not _can_build("int main() {}", "-fopenmp", "-fsanitize=address,undefined"),
    reason=f"{CXX} with OpenMP, AddressSanitizer and UBSan is not installed",
)
def test_kernels_agree_with_float64_under_sanitizers(tmp_path):
    lines = _check("sanitize", tmp_path)
    assert any(" reference " in line for line in lines)
    assert lines[-1] == "check_kernels: ok"


SIMDE = """
#if !defined(__x86_64__) || !__has_include(<simde/x86/avx512.h>)
#error
#endif
int main() {}
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not _can_build(SIMDE, "-fopenmp"),
    reason=f"needs x86-64, {CXX} with OpenMP and SIMDe (Debian: libsimde-dev)",
)
def test_avx512_source_agrees_with_float64_on_any_x86(tmp_path):
    lines = _check("simde", tmp_path)
    assert any(" avx512 " in line for line in lines)
    assert lines[-1] == "check_kernels: ok"


ARM, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    not _can_build("int main() {}", "-fopenmp", "-static", cxx=ARM) or not shutil.which(EMULATOR),
    reason=f"needs {ARM} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_kernels_agree_with_float64_on_an_emulated_arm(tmp_path):
    # A thousand drawn cases: the whole walk takes the emulator too long.
    lines = _check("static", tmp_path, ARM, (EMULATOR,), ("--fuzz", "1000", "1"))
    assert any(" reference " in line for line in lines)
    assert not any(" avx" in line for line in lines)
    assert lines[-1] == "check_kernels: ok"
