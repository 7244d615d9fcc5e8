# SPDX-License-Identifier: Apache-2.0
"""A failed allocation in a native call is a ResourceError, and the next call is right."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import native_calls
import pytest

from gossamer.errors import ResourceError
from gossamer.out_of_memory import is_out_of_memory, names_memory

HERE = Path(__file__).parent


COMPILER = shutil.which("c++")


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs c++ and Linux")
def test_allocations_of_every_call_may_fail(tmp_path):
    library = tmp_path / "failing_memory.so"
    source = HERE / "failing_memory.cpp"
    options = ("-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl")
    subprocess.run([COMPILER, *options], check=True)
    run = subprocess.run(
        [sys.executable, HERE / "memory_drill.py", str(library)],
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, f"ended in the call behind {lines[-1:]}: {run.stderr[-2000:]}"
    assert {line["call"] for line in lines} == set(native_calls.calls())
    assert [line for line in lines if line["wrong"]] == []
    # AdamW and absorption work in place; torch packs for its own libraries.
    quiet = {line["call"] for line in lines if not line["met"]}
    of_torch = {call for call in native_calls.calls() if call.startswith("pack dense/")}
    assert quiet <= {"adamw", "absorb"} | of_torch


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_torch_says_it_in_several_ways(error):
    @names_memory("some layer", "Buy more.")
    def fails():
        raise error

    with pytest.raises(ResourceError, match=r"^some layer: out of memory.*Buy more\.$") as told:
        fails()
    assert is_out_of_memory(told.value)
    assert ("99 bytes" in str(told.value)) == ("99 bytes" in str(error))


def test_other_errors_go_through():
    @names_memory("some layer")
    def fails():
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        fails()
