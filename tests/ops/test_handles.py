# SPDX-License-Identifier: Apache-2.0
"""A graph of a compiled model runs with its own weights or not at all."""

import copy
import gc
import os
import subprocess
import sys
from pathlib import Path

import native_calls
import pytest
import torch
from test_tensor_kinds import LAYERS

from gossamer.errors import KernelError
from gossamer.ops.calls import Handles

MODELS = ("packed linear", "packed conv", "encoder")


def exported(name):
    """A program, an input, the right result, and the model itself."""
    sparse, _, x = LAYERS[name]()
    with torch.no_grad():
        return torch.export.export(sparse, (x,)).module(), x, sparse(x), sparse


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


@pytest.mark.parametrize("name", MODELS)
def test_a_program_whose_model_is_gone_never_meets_another(name):
    program, x, wanted, model = exported(name)
    with torch.no_grad():
        torch.testing.assert_close(program(x), wanted)
        del model
        gc.collect()
        others = []
        for _ in range(3 if name == "encoder" else 60):
            # Freed addresses are used again, soon and by things of the same size.
            others.append(LAYERS[name]()[0])
            with pytest.raises(KernelError, match="no longer exists"):
                program(x)


def test_a_copy_of_the_model_keeps_its_program_alive():
    program, x, wanted, model = exported("packed linear")
    clone = copy.deepcopy(model)
    del model
    gc.collect()
    with torch.no_grad():
        assert torch.equal(program(x), wanted)
        assert torch.equal(clone(x), wanted)


def test_a_compiled_function_follows_the_model_it_is_given():
    @torch.compile(backend="eager")
    def run(weight, x):
        return weight(x)

    x = native_calls.random(3, 80)
    for seed in (1, 2, 1):
        weight = native_calls.kept(48, 80, seed=seed)[1]
        sparse = native_calls.Problem(native_calls.SparseMatrix.from_dense(weight))
        torch.testing.assert_close(run(native_calls.PANEL.pack(sparse), x), x @ weight.T)


def test_a_graph_for_other_sizes_is_refused():
    run, _ = native_calls.pack_linear(native_calls.PANEL)
    op, x = torch.ops.gossamer.packed_linear, native_calls.random(3, 80)
    for rows, columns, kernel in ((47, 80, "panel"), (48, 79, "panel"), (48, 80, "strip")):
        with pytest.raises(KernelError, match="Export the model again"):
            op(x, None, run.handle, rows, columns, kernel, "none")
    conv, _ = native_calls.pack_conv()
    numbers = conv.settings.numbers()
    images, op = native_calls.random(1, 4, 7, 7), torch.ops.gossamer.packed_conv
    for changed, kernel in (([*numbers[:-1], 2], "conv"), (numbers, "conv_int8")):
        with pytest.raises(KernelError, match="Export the model again"):
            op(images, None, conv.handle, changed, kernel, "none")


_ELSEWHERE = """
import sys, torch
import native_calls
from gossamer.errors import KernelError
program = torch.export.load(sys.argv[1]).module()
kept = [native_calls.pack_linear(native_calls.PANEL)[0] for _ in range(50)]
try:
    program(native_calls.random(6, 80))
except KernelError as error:
    assert "another process" in str(error), error
    print("refused")
"""


def test_a_saved_program_is_refused_in_another_process(tmp_path):
    sparse, _, x = LAYERS["packed linear"]()
    with torch.no_grad():
        torch.export.save(torch.export.export(sparse, (x,)), tmp_path / "program.pt2")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ELSEWHERE, str(tmp_path / "program.pt2")],
        env={**os.environ, "PYTHONPATH": str(Path(native_calls.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.stdout.strip() == "refused", run.stderr[-2000:]


class Thing:
    """Anything."""


def test_numbers_are_never_given_twice():
    table = Handles("test")
    numbers = set()
    for _ in range(1000):
        number = table.add(Thing())
        assert number not in numbers
        numbers.add(number)
        with pytest.raises(KernelError, match=r"^test: "):
            table.find(number)
    assert all(0 <= number < 2**63 for number in numbers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_gives_other_numbers():
    table, thing = Handles("test"), Thing()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(table.add(thing)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 100)) != table.add(thing)
    os.close(reader)
    os.close(writer)
